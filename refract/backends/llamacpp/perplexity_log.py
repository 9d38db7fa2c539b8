"""What llama-perplexity says: its final figures, and why it failed where it did. Its exit status means nothing."""

from __future__ import annotations

import math
import re

from refract.backends._process import described
from refract.errors import EngineError

_FINAL = re.compile(r"Final estimate: PPL = (\S+) \+/-")
_NOT_FINITE = "Unexpected negative standard deviation of log(prob)"
_MEAN_KLD = re.compile(r"^Mean +KLD: +(\S+)", re.MULTILINE)
_PREFIX = re.compile(r"^(?:\d+\.)+\d+ [A-Z] ")  # time and level
_ERROR = re.compile(r"(?:^(?:\d+\.)+\d+ E |\berror\b|\bfailed\b|cannot open shared object|GGML_ASSERT)", re.IGNORECASE)
_REASONS = 3  # lines quoted in an error
_AGREEMENT_NATS = 1e-3  # the printed mean has four decimals of a perplexity; 16-bit codes average to less


class TailLostError(EngineError):
    """A run that ended well, and whose last lines are missing.

    llama.cpp prints from a thread of its own that it does not wait for when it exits (common/log.cpp, issue 22142): on
    a busy machine a run in a hundred loses its end.
    """


def final_perplexity(log: str) -> float:
    """The perplexity printed at the end, NaN where the tool found its logits not finite.

    Raises: EngineError; TailLostError when nothing says why there is none.
    """
    found = _FINAL.findall(log)
    if found:
        return _figure(found[-1], log)
    if _NOT_FINITE in log:
        return math.nan
    raise _without("no final perplexity", log)


def printed_mean_kld(log: str) -> float:
    """The `Mean    KLD` line of a `--kl-divergence` run. Raises: as `final_perplexity`."""
    found = _MEAN_KLD.findall(log)
    if not found:
        raise _without("no mean KL divergence", log)
    return _figure(found[-1], log)


def _without(what: str, log: str) -> EngineError:
    error = incomplete(what, log, 0)
    return error if any(map(_ERROR.search, log.splitlines())) else TailLostError(error.message, hint=error.hint)


def _figure(text: str, log: str) -> float:
    """The number; C libraries write what is none as nan, -nan or -nan(ind). Raises: EngineError for other words."""
    try:
        return float(text)
    except ValueError:
        if "nan" in text:
            return math.nan
        raise incomplete(f"the figure {text[:20]!r}", log, 0) from None


def check_agreement(log: str, mean_nll: float, *, clamped: bool) -> None:
    """The file that was read and the perplexity that was printed are of the same run.

    mean_nll: of the scored tokens, in nats, as read from the file; `clamped` when some of them are less probable than
    the file can say, so that their mean is too small.

    Raises: EngineError when they are not, or the tool printed no perplexity.
    """
    perplexity = final_perplexity(log)
    if math.isnan(perplexity) or not math.isfinite(mean_nll):
        agree = math.isnan(perplexity) and not math.isfinite(mean_nll)
    elif perplexity <= 0.0:
        agree = False
    else:
        difference = math.log(perplexity) - mean_nll
        agree = abs(difference) <= _AGREEMENT_NATS or (clamped and difference > 0)
    if not agree:
        raise EngineError(
            f"llama-perplexity prints a perplexity of {perplexity:g}, its logits file holds one of"
            f" {math.exp(min(mean_nll, 700.0)):g}",
            hint="the binary may write an unknown file layout; b11434 is known to work",
        )


def incomplete(what: str, log: str, status: int | None) -> EngineError:
    """The error for a run that ended early, with the lines in which the tool says why."""
    lines = [_PREFIX.sub("", line).strip() for line in log.splitlines() if line.strip()]
    telling = [_PREFIX.sub("", line).strip() for line in log.splitlines() if _ERROR.search(line)]
    said = "; ".join((telling or lines)[-_REASONS:]) or "it printed nothing"
    ended = f" ({described(status)})" if status else ""
    return EngineError(f"llama-perplexity gave {what}{ended}: {said}", hint=_hint(said, status))


def _hint(said: str, status: int | None) -> str:
    if status == 128 + 9 or "failed to allocate" in said:
        return "the system ended it or it ran out of memory: use a smaller --ctx, or close other programs"
    if status == 128 + 4:
        return "this binary uses instructions this processor lacks: build it with GGML_NATIVE=OFF"
    if "cannot open shared object" in said:
        return "its libraries are missing: set LD_LIBRARY_PATH to their folder, or run refract engines build-llamacpp"
    if "memory slot" in said or "while the current context" in said:
        return "the logits were computed with another context: delete the stored answer and run again"
    if "invalid argument" in said:
        return "this binary does not know the option: use a newer llama.cpp, or check the extra flags"
    return "run with --debug to see its whole output"
