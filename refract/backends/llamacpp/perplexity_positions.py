"""What a patched llama-perplexity says of single positions: one line of JSON each, see llama-cpp-patches."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from refract.backends._process import child
from refract.backends.llamacpp.perplexity_log import printed_mean_kld
from refract.backends.llamacpp.perplexity_run import Run
from refract.errors import EngineError
from refract.work import Divergence, Window

POSITIONS_OPTION = "--kl-divergence-positions"
_HELP_S = 30.0
_SUMMARISED = 100  # positions below which the tool prints no summary
_AGREEMENT = 1e-2  # its own mean is of uncoded logits


def announces_positions(binary: Path, env: Mapping[str, str]) -> bool:
    """Whether the binary's help names the option that the patch adds. Raises: SetupError when it cannot be started."""
    with child([str(binary), "--help"], env=env) as process:
        process.wait(_HELP_S)
        return POSITIONS_OPTION in process.log


def read_positions(
    run: Run, windows: Sequence[Window], *, check: Callable[[str], None]
) -> Iterator[tuple[Window, Divergence]]:
    """The divergence of every window, each as soon as it is complete; the log is given to `check` in the end.

    Raises: EngineError when positions are missing, others than expected, or at odds with the tool's own mean.
    """
    lines, total = run.lines(), []
    for chunk, window in enumerate(windows):
        wanted = [(chunk, at, window.tokens[at]) for at in range(window.start, len(window.tokens))]
        rows = [_row(next(lines, b""), expected) for expected in wanted]
        try:
            with np.errstate(all="ignore"):  # what overflows is not finite, and counted as such
                found = _divergence(rows)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise EngineError(
                f"llama-perplexity gave something else than numbers in window {chunk + 1}: {error}",
                hint="build its patched version again: refract engines build-llamacpp --patched",
            ) from None
        total.append(found.kl)
        yield window, found
    if extra := next(lines, None):
        raise EngineError(f"llama-perplexity writes more positions than were asked for: {extra[:80]!r}")
    mean = float(np.concatenate(total).mean(dtype=np.float64))
    log = run.finish()
    check(log)
    if sum(map(len, total)) >= _SUMMARISED:
        printed = printed_mean_kld(log)
        if math.isfinite(mean) and not math.isclose(printed, mean, rel_tol=_AGREEMENT, abs_tol=1e-4):
            raise EngineError(f"llama-perplexity prints a mean KL of {printed:g}, its positions have {mean:g}")


def _row(line: bytes, expected: tuple[int, int, int]) -> Mapping[str, Any]:
    """The values of a line, which must be of the expected chunk, position and token."""
    try:
        row: dict[str, Any] = json.loads(line)
        found = row["chunk"], row["position"], row["token"]
    except (ValueError, KeyError, TypeError):
        raise EngineError(
            f"llama-perplexity gave no position {expected[1]} of window {expected[0] + 1}: {line[:80]!r}",
            hint="build its patched version again: refract engines build-llamacpp --patched",
        ) from None
    if found != expected:
        raise EngineError(f"llama-perplexity gave position {found}, expected {expected} (window, position, token)")
    return row


def _divergence(rows: Sequence[Mapping[str, Any]]) -> Divergence:
    values = {name: _numbers(rows, name) for name in ("kl", "nll_reference", "nll", "margin")}
    reference, candidate = values["nll_reference"], values["nll"]
    p_delta = np.exp(-candidate) - np.exp(-reference)
    return Divergence(
        kl=values["kl"].astype(np.float32),
        same_top=np.array([bool(row["same_top"]) for row in rows]),
        reference_margin=values["margin"].astype(np.float32),
        token_nll_delta=(candidate - reference).astype(np.float32),
        token_p_delta=p_delta.astype(np.float32),
        reference_nll=reference.astype(np.float32),
        reference_finite=np.array([bool(row["reference_finite"]) for row in rows]),
        window=np.zeros(len(rows), np.int32),
        estimator="kl-exact",
    )


def _numbers(rows: Sequence[Mapping[str, Any]], name: str) -> Any:
    return np.array([math.nan if row[name] is None else row[name] for row in rows], dtype=np.float64)
