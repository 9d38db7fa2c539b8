"""A llama.cpp with the patches: windows behind a long cache in one prefill, equal to what forcing reads."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from refract.axes.windows import cut_windows
from refract.backends.llamacpp.engine import LlamaCppEngine
from refract.data.corpus import load_corpus
from refract.engine import Capability, LoadSpec
from refract.kv import parse_kv
from refract.run.blobs import BlobFolder
from refract.work import Base, CompareBase, Divergence, Window, WriteBase
from tests.engines.conftest import missing

VARIABLE = "REFRACT_TEST_LLAMA_PATCHED"
SIZE, POSITIONS = 700, 48


@pytest.fixture(scope="module")
def engine() -> LlamaCppEngine:
    """The engine on binaries made by `refract engines build-llamacpp --patched`."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        missing(f"no patched llama.cpp: set {VARIABLE} to what `refract engines build-llamacpp --patched` prints")
    return LlamaCppEngine({"llama_bin": str(folder)})


def divergence(engine: LlamaCppEngine, model: str, window: Window, protocol: str, folder: Path) -> np.ndarray:
    """KL (N,) of q4_0/q4_0 over the window's scored positions; checks that the reference against itself is 0."""
    blobs = BlobFolder(folder)
    write = WriteBase(windows=(window,), protocol=protocol)  # type: ignore[arg-type]
    spec = LoadSpec(model=model, kv=parse_kv("ctk=f16,ctv=f16"), max_tokens=SIZE + 1)
    with engine.load(spec, blobs) as session:
        ((_, base),) = session.run([write])
        assert isinstance(base, Base)
        compare = CompareBase(windows=write.windows, protocol=write.protocol, base=base.blob)
        ((_, own),) = session.run([compare])
        assert isinstance(own, Divergence)
        assert own.kl.tolist() == [0.0] * POSITIONS
    spec = LoadSpec(model=model, kv=parse_kv("ctk=q4_0,ctv=q4_0"), max_tokens=SIZE + 1)
    with engine.load(spec, blobs) as session:
        ((_, found),) = session.run([compare])
        assert isinstance(found, Divergence)
        return found.kl


def test_a_deep_window_read_in_one_prefill_is_the_one_read_by_forcing(
    engine: LlamaCppEngine, smollm2_f16: Path, tmp_path: Path
) -> None:
    assert Capability.KL_DEEP in engine.capabilities(parse_kv("ctk=f16,ctv=f16"))
    model = str(smollm2_f16)
    (cut,) = cut_windows(load_corpus(None), engine.tokenizer(model), count=1, size=SIZE)
    window = Window(tokens=cut.tokens, start=SIZE - POSITIONS)
    read, forced = (divergence(engine, model, window, p, tmp_path / p) for p in ("prefill", "decode"))
    alike = float(np.corrcoef(read, forced)[0, 1])
    print(f"mean KL behind {SIZE} tokens: prefill {read.mean():.5f}, decode {forced.mean():.5f}, r {alike:.3f}")
    assert read.mean() == pytest.approx(forced.mean(), rel=0.25)  # a compressed cache amplifies the order of sums
    assert alike > 0.8
