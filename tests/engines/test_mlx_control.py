"""The harmless change of the MLX engine: another identity, the same answers but for chaos in lossy caches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from refract.backends.mlx.engine import MLXEngine
from refract.data.corpus import load_corpus
from refract.engine import LoadSpec, Session
from refract.errors import UsageError
from refract.kv import parse_kv
from refract.run.blobs import BlobFolder
from refract.work import Base, CompareBase, Divergence, Window, WriteBase

KV = parse_kv("ctk=f16,ctv=f16")
pytestmark = pytest.mark.usefixtures("mlx")


def spec(model: Path, kv: str, **options: str) -> LoadSpec:
    k, v = kv.split("/")
    return LoadSpec(model=str(model), kv=parse_kv(f"ctk={k},ctv={v}"), max_tokens=512, options=options)


@contextmanager
def session(engine: MLXEngine, load: LoadSpec, folder: Path) -> Iterator[Session]:
    with engine.load(load, BlobFolder(folder)) as opened:
        yield opened


def self_divergence(engine: MLXEngine, model: Path, folder: Path, kv: str) -> float:
    """Mean KL in nats of a configuration under the change against the same without it."""
    ids = engine.tokenizer(str(model)).encode(load_corpus(None).text[5000:9000])[:512]
    windows = (Window(tokens=ids, start=257),)
    plain = spec(model, kv)
    changed = spec(model, kv, **engine.control_options(plain.options, plain.kv))
    with session(engine, plain, folder) as opened:
        ((_, base),) = opened.run([WriteBase(windows=windows, protocol="prefill")])
    assert isinstance(base, Base)
    with session(engine, changed, folder) as opened:
        ((_, answer),) = opened.run([CompareBase(windows=windows, protocol="prefill", base=base.blob)])
    assert isinstance(answer, Divergence)
    return float(answer.kl.mean())


def test_the_specs_options_go_over_the_engines_own(smollm2: Path) -> None:
    engine = MLXEngine({"batch": "16"})
    assert engine.identify(spec(smollm2, "f16/f16")).options["batch"] == "16"
    assert engine.identify(spec(smollm2, "f16/f16", batch="8", chunk="512")).options["chunk"] == "512"
    assert engine.identify(spec(smollm2, "f16/f16", batch="16")) == engine.identify(spec(smollm2, "f16/f16"))


def test_the_change_differs_from_whatever_is_set() -> None:
    engine = MLXEngine({"chunk": "512"})
    assert engine.control_options({}, KV) == {"batch": "8", "chunk": "128"}
    assert engine.control_options({"batch": "8"}, KV) == {"batch": "32", "chunk": "128"}
    assert MLXEngine().control_options({}, KV) == {"batch": "8", "chunk": "512"}


@pytest.mark.parametrize("options", [{"chunk": "0"}, {"chunk": "x"}, {"batch": "2000"}, {"chunks": "4"}])
def test_what_cannot_be_an_option_is_refused_in_a_spec_too(smollm2: Path, options: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        MLXEngine(options)
    with pytest.raises(UsageError):
        MLXEngine().identify(spec(smollm2, "f16/f16", **options))


def test_the_change_moves_a_lossy_cache_more_than_the_reference(smollm2: Path, tmp_path: Path) -> None:
    engine = MLXEngine()
    reference = self_divergence(engine, smollm2, tmp_path, "f16/f16")
    lossy = self_divergence(engine, smollm2, tmp_path, "turbo4/turbo4")
    print(f"under the change: f16 {reference:.3g} nats, turbo4 {lossy:.3g} nats")
    assert reference < 1e-4
    assert lossy > 10.0 * reference
    assert lossy > 1e-3
