"""What real SGLang servers lose under each KV type, and by which way it is read; on processors, SmolLM2 in float32."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from refract.axes.kld import Kld
from refract.axes.trajectory import Trajectory
from refract.axes.windows import cut_windows
from refract.backends._listed import compare_listings
from refract.backends.sglang.asking import SGLangAsker
from refract.backends.sglang.engine import SGLangEngine
from refract.data.corpus import load_corpus
from refract.errors import ConfigMismatchError, IncompleteError, RefractError, UsageError
from refract.kv import parse_kv
from refract.run.runner import RunResult, run
from refract.run.spec import RunSpec
from refract.run.store import AnswerStore
from refract.testing.fixtures import answers
from refract.work import Base, CompareBase, Divergence, Floats, Protocol, TokenIds, Window, WriteBase
from tests.axes.support import prompt_set
from tests.backends.test_process import until
from tests.engines.gpl_opening import gpl_opening
from tests.engines.sglang_servers import Sessions

REFERENCE, E4M3, E5M2 = (f"ctk={name},ctv={name}" for name in ("f16", "fp8_e4m3", "fp8_e5m2"))
# Mean KL in nats over `gpl_opening`, in prefill, as measured of SGLang 0.5.15.post1 without any of this code
MEASURED = {"fp8_e4m3": 0.021, "fp8_e5m2": 0.081}
WITHIN = 0.2
ROUNDING_NATS = 1e-6  # of sums of float32 log-probabilities


@pytest.fixture(scope="module")
def windows(sglang: Sessions) -> tuple[Window, ...]:
    """Windows of the bundled texts."""
    cut = cut_windows(load_corpus(None), sglang.engine.tokenizer(str(sglang.model)), count=4, size=128)
    return tuple(Window(tokens=window.tokens, start=1) for window in cut)


def compared(sglang: Sessions, name: str, windows: tuple[Window, ...], protocol: Protocol) -> Divergence:
    (base,) = answers(sglang("f16"), [WriteBase(windows=windows, protocol=protocol)]).values()
    assert isinstance(base, Base)
    asked = CompareBase(windows=windows, protocol=protocol, base=base.blob)
    (found,) = answers(sglang(name), [asked]).values()
    assert isinstance(found, Divergence)
    return found


def test_both_types_lose_what_was_measured_and_in_order(sglang: Sessions) -> None:
    windows = (gpl_opening(sglang.engine.tokenizer(str(sglang.model))),)
    found = {name: float(compared(sglang, name, windows, "prefill").kl.mean()) for name in MEASURED}
    print(found)
    assert found["fp8_e4m3"] < found["fp8_e5m2"]
    for name, expected in MEASURED.items():
        assert found[name] == pytest.approx(expected, rel=WITHIN)


def test_a_prompt_read_at_once_and_in_steps_read_the_same_cache(sglang: Sessions, windows: tuple[Window, ...]) -> None:
    """The attention of processors reads its prompt back from the cache, so that both ways lose alike."""
    short = tuple(Window(tokens=window.tokens[:64], start=40) for window in windows[:2])
    once, steps = (float(compared(sglang, "fp8_e4m3", short, protocol).kl.mean()) for protocol in ("prefill", "decode"))
    assert once > 0.002
    assert steps == pytest.approx(once, rel=0.5)
    own = compared(sglang, "f16", short, "decode")
    assert np.array_equal(own.kl, np.zeros_like(own.kl))


def test_longer_lists_bring_the_bound_up_to_the_exact_divergence(sglang: Sessions, windows: tuple[Window, ...]) -> None:
    """20 tokens miss a fifth of it, 1,000 a fiftieth; early in a text, where more is possible, they miss more."""
    askers = sglang("f16")._asker, sglang("fp8_e4m3")._asker  # type: ignore[attr-defined]
    few, many, exact = (
        np.concatenate([_listed_divergence(askers, window.tokens, count) for window in windows])
        for count in (20, 1000, sglang.engine.tokenizer(str(sglang.model)).vocab_size)
    )
    assert np.all(few <= many + ROUNDING_NATS)
    assert np.all(many <= exact + ROUNDING_NATS)
    assert float(many.mean()) == pytest.approx(float(exact.mean()), rel=0.05)


def _listed_divergence(askers: tuple[SGLangAsker, SGLangAsker], tokens: TokenIds, count: int) -> Floats:
    reference, candidate = (asker.read(tokens, len(tokens) - 16, count) for asker in askers)
    return compare_listings(reference, candidate).kl


# Whole runs.


def asked(sglang: Sessions, *candidates: str) -> RunSpec:
    return RunSpec(
        model=str(sglang.model),
        reference=parse_kv(REFERENCE),
        candidates=tuple(map(parse_kv, candidates)),
        axes=(Trajectory(), Kld(chunks=2, ctx=64, along_trajectories=1)),
        prompts=prompt_set("Name three rivers of Europe.", "What is a loom?", "Write a line about the sea."),
        corpus=load_corpus(None),
        n_predict=8,
    )


def scored(spec: RunSpec, folder: Path, **options: str) -> RunResult:
    sides = {"reference_kv": str(spec.reference), "candidate_kv": ";".join(map(str, spec.candidates))}
    with AnswerStore(folder / "store") as store:
        return run(spec, SGLangEngine({**sides, **options}, folder / "cache"), store)


def test_the_reference_against_itself_is_exactly_the_same(sglang: Sessions, tmp_path: Path) -> None:
    found = scored(asked(sglang, REFERENCE), tmp_path, url=sglang.url("f16"))
    trajectory, kld = found.candidates[0].axes
    assert trajectory.score is not None
    assert trajectory.score.value == 100.0
    assert kld.statistics["mean_kl_nats"].value == 0.0


def test_one_address_takes_two_commands(sglang: Sessions, tmp_path: Path) -> None:
    spec = asked(sglang, E4M3)
    with pytest.raises(IncompleteError, match="keeps fp8_e4m3"):  # the wrong server first
        scored(spec, tmp_path, url=sglang.url("fp8_e4m3"))
    with pytest.raises(IncompleteError) as caught:
        scored(spec, tmp_path, url=sglang.url("f16"))
    assert "--kv-cache-dtype fp8_e4m3" in str(caught.value.hint)
    found = scored(spec, tmp_path, url=sglang.url("fp8_e4m3"))
    assert found.loads == 1
    assert [axis.status for axis in found.candidates[0].axes] == ["ok", "ok"]
    assert found.candidates[0].axes[1].estimator == "kl-top1000"


def refusal(sglang: Sessions, folder: Path, reference: str, candidate: str) -> RefractError:
    urls = {"reference_url": sglang.url(reference), "candidate_url": sglang.url(candidate)}
    with pytest.raises(RefractError) as caught:
        scored(asked(sglang, E4M3), folder, **urls)
    return caught.value


def test_one_server_for_both_sides_is_refused(sglang: Sessions, tmp_path: Path) -> None:
    error = refusal(sglang, tmp_path, "f16", "f16")
    assert isinstance(error, UsageError)
    assert "--candidate-url" in str(error.hint)


def test_a_server_of_another_type_is_refused(sglang: Sessions, tmp_path: Path) -> None:
    error = refusal(sglang, tmp_path, "f16", "fp8_e5m2")
    assert isinstance(error, ConfigMismatchError)
    assert "--kv-cache-dtype fp8_e4m3" in str(error.hint)


def test_servers_are_started_one_after_the_other_and_none_is_left(sglang: Sessions, tmp_path: Path) -> None:
    python = sglang.engine.installation.python
    before = servers()
    found = scored(asked(sglang, E4M3), tmp_path, launch="1", python=python)
    assert found.loads == 2
    kld = found.candidates[0].axes[1]
    assert (kld.status, kld.protocol) == ("ok", "prefill")
    assert found.candidates[0].effective.bytes_per_token * 4 == found.reference.effective.bytes_per_token
    assert until(lambda: servers() <= before)


def servers() -> set[int]:
    """The processes of SGLang's that run for this user; one that has ended and was not waited for yet does not."""
    command = ["ps", "-u", str(os.getuid()), "-o", "pid=,stat=,args="]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    found = [line.split(maxsplit=2) for line in listed if "sglang" in line and "pytest" not in line]
    return {int(pid) for pid, state, _ in found if not state.startswith("Z")}
