"""The server of the xllamacpp wheel stands in for llama-server, without a divergence over whole windows."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from refract.backends.llamacpp import find
from refract.backends.llamacpp.engine import LlamaCppEngine
from refract.engine import Capability, LoadSpec
from refract.kv import parse_kv
from refract.run.blobs import BlobFolder
from refract.work import Base, CompareBase, Divergence, Generate, Generation, Window, WriteBase
from tests.engines.conftest import missing


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LlamaCppEngine:
    if importlib.util.find_spec("xllamacpp") is None:
        missing("the xllamacpp wheel is not installed: pip install xllamacpp")
    monkeypatch.delenv(find.VARIABLE, raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    return LlamaCppEngine(cache_dir=tmp_path)


def test_generation_and_divergence_token_by_token(engine: LlamaCppEngine, smollm2: Path, tmp_path: Path) -> None:
    model, blobs = str(smollm2), BlobFolder(tmp_path / "blobs")
    kv = parse_kv("ctk=q8_0,ctv=q4_0")
    assert engine.binaries.build.startswith("xllamacpp ")
    assert Capability.KL_PREFILL not in engine.capabilities(kv)
    ids = engine.tokenizer(model).encode("The lighthouse keeper counted the ships every evening and wrote the number.")
    windows = (Window(tokens=ids, start=len(ids) // 2),)
    reference = LoadSpec(model=model, kv=parse_kv("ctk=f16,ctv=f16"), max_tokens=64)
    with engine.load(reference, blobs) as session:
        found = dict(
            session.run([WriteBase(windows=windows, protocol="decode"), Generate(prompt=ids, max_new_tokens=4)])
        )
        base = next(answer for answer in found.values() if isinstance(answer, Base))
        assert any(isinstance(answer, Generation) and len(answer.tokens) == 4 for answer in found.values())
        compare = CompareBase(windows=windows, protocol="decode", base=base.blob)
        ((_, own),) = session.run([compare])
        assert isinstance(own, Divergence)
        assert own.kl.tolist() == [0.0] * len(own)
    with engine.load(LoadSpec(model=model, kv=kv, max_tokens=64), blobs) as session:
        assert session.effective_kv.bytes_per_token == 30 * 192 * (8.5 + 4.5) / 8
        ((_, other),) = session.run([compare])
        assert isinstance(other, Divergence)
        assert other.kl.mean() > 1e-4
        assert other.estimator == "kl-top1000"
