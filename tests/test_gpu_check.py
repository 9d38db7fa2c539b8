"""The script for people with a GPU: each claim it judges fails where it must, and its last line sums up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import gpu_check
from benchmarks.gpu_check import FP8, Line, Measured, check_engine, judge_candidate, judge_reference
from refract.backends.vllm.http_session import HTTPVLLM
from refract.errors import EngineError
from refract.kv import parse_kv
from refract.run.blobs import BlobFolder
from refract.work import Divergence, EffectiveKV, Generation, Protocol
from tests.backends.fake_http import serving
from tests.backends.toy_server import Toy, model_folder

PLAIN = EffectiveKV(k="auto", v="auto", layers=4, layers_compressed=0, bytes_per_token=256.0)
SMALL = EffectiveKV(k="fp8_e4m3", v="fp8_e4m3", layers=4, layers_compressed=4, bytes_per_token=128.0)
KV = parse_kv(FP8[0])


def divergence(value: float, count: int = 8) -> Divergence:
    floats = np.full(count, value, np.float32)
    return Divergence(
        kl=floats,
        same_top=np.ones(count, np.bool_),
        reference_margin=floats,
        token_nll_delta=floats,
        token_p_delta=floats,
        reference_nll=floats,
        reference_finite=np.ones(count, np.bool_),
        window=np.zeros(count, np.int32),
        estimator="kl-exact",
    )


def measured(effective: EffectiveKV, *texts: int, **kl: float) -> Measured:
    protocols: dict[Protocol, Divergence] = {name: divergence(value) for name, value in kl.items()}  # type: ignore[misc]
    generations = tuple(Generation(tokens=(text,), stop="length") for text in texts)
    return Measured(effective=effective, generations=generations, divergences=protocols)


def failed(lines: Iterator[Line]) -> list[str]:
    return [line.name for line in lines if line.ok is False]


def test_a_sound_reference_and_candidate_pass() -> None:
    reference = measured(PLAIN, 1, 2, 1, 2, decode=0.0, prefill=0.0)
    assert failed(judge_reference("vllm", reference)) == []
    assert failed(judge_candidate("vllm", KV, reference, measured(SMALL, 1, 2, decode=0.02, prefill=0.02))) == []


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        (measured(SMALL, 1, 1, decode=0.0), "vllm reference"),
        (measured(PLAIN, 1, 1, decode=1e-6), "vllm reference against itself, decode"),
        (measured(PLAIN, 1, 2, decode=0.0), "vllm greedy text twice"),
    ],
)
def test_an_unsound_reference_fails(reference: Measured, said: str) -> None:
    assert failed(judge_reference("vllm", reference)) == [said]


@pytest.mark.parametrize(
    ("candidate", "said"),
    [
        (measured(PLAIN, 1, decode=0.02), "requested = effective"),
        (measured(replace(SMALL, bytes_per_token=256.0), 1, decode=0.02), "requested = effective"),
        (measured(SMALL, 1, decode=0.0), "decode reads the compressed cache"),
        (measured(SMALL, 1, decode=float("nan")), "decode reads the compressed cache"),
        (measured(SMALL, 1, decode=0.02, prefill=0.0), "prefill is not blind"),
    ],
)
def test_an_unsound_candidate_fails(candidate: Measured, said: str) -> None:
    lines = failed(judge_candidate("vllm", KV, measured(PLAIN, 1, 1, decode=0.0), candidate))
    assert lines == [f"vllm {KV} {said}"]


def test_the_last_line_sums_up(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [Line(name="a", ok=True, found="x"), Line(name="b", ok=None, found="y")]
    monkeypatch.setattr(gpu_check, "_check", lambda *_: iter(lines))
    assert gpu_check.main(["vllm", "--model", "m"]) == 0
    assert capsys.readouterr().out.splitlines() == ["PASS  a: x", "SKIP  b: y", "PASS  1 checks, 0 failed, 1 skipped"]
    monkeypatch.setattr(gpu_check, "_check", lambda *_: iter([Line(name="a", ok=False, found="x")]))
    assert gpu_check.main(["vllm", "--model", "m"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "FAIL  1 checks, 1 failed, 0 skipped"


def test_an_engine_that_cannot_start_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any) -> None:
        raise EngineError("no such engine", hint="install it")

    monkeypatch.setattr(gpu_check, "load_engine", refuse)
    assert gpu_check.main(["sglang", "--model", "m"]) == 1
    assert "FAIL  sglang: no such engine (install it)" in capsys.readouterr().out


def test_a_whole_check_over_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's own requests, against servers that stand for one KV type each."""
    folder = model_folder(tmp_path / "model")
    cache = {"enable_prefix_caching": "False", "kv_cache_dtype_skip_layers": "[]"}
    plain = Toy(folder=folder, kind="vllm", started="1.5", cache={**cache, "cache_dtype": "auto"})
    small = Toy(folder=folder, kind="vllm", started="2.5", cache={**cache, "cache_dtype": "fp8_e4m3"}, noise=0.3)
    monkeypatch.setattr(gpu_check, "CANDIDATES", {"vllm": (FP8[0], "ctk=affine4,ctv=affine4")})
    with serving(plain) as first, serving(small) as second:
        engine = HTTPVLLM({"reference_url": first.url, "candidate_url": second.url})
        lines = list(check_engine(engine, str(folder), BlobFolder(tmp_path / "blobs"), 1, 48))
    assert [line.ok for line in lines] == [True, True, True, True, True, None]
    assert "vllm ctk=fp8_e4m3,ctv=fp8_e4m3 decode reads the compressed cache" in [line.name for line in lines]
