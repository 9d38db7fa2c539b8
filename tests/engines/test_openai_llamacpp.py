"""The OpenAI backend against a real llama-server: the contract, an exact floor, the order of formats, a whole run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests

from refract.axes.windows import cut_windows
from refract.backends._tokenizer import load_tokenizer
from refract.backends.llamacpp.find import clean_environment, find_binaries
from refract.backends.llamacpp.server import serving
from refract.backends.openai.engine import OpenAIEngine
from refract.backends.openai.stated import STATED
from refract.cli import main
from refract.data.corpus import load_corpus
from refract.engine import LoadSpec
from refract.errors import UsageError
from refract.kv import KVConfig, parse_kv
from refract.run.blobs import BlobFolder
from refract.run.cache import cache_folder
from refract.testing import EngineContract
from refract.work import Base, CompareBase, Divergence, Failure, Generate, Generation, Window, WriteBase
from tests.backends.fake_http import Reply
from tests.backends.fake_http import serving as serving_fake

pytestmark = pytest.mark.usefixtures("llamacpp")

PLAIN = parse_kv("ctk=f16,ctv=f16")


@contextmanager
def server(model: Path, kv: str) -> Iterator[str]:
    """The address of a llama-server that keeps K and V as `kv`."""
    flags = ["-ctk", kv, "-ctv", kv, "-fa", "on", "-fit", "off", "-np", "1", "-c", "1024", "-t", "1", "--no-warmup"]
    env = clean_environment(os.environ) | {"OMP_WAIT_POLICY": "passive"}
    with serving(find_binaries(None, cache_folder()), model, flags, env, timeout_s=600.0) as started:
        yield started.client.url


@pytest.fixture(scope="module")
def urls(smollm2: Path) -> Iterator[dict[str, str]]:
    """One server of each KV type."""
    with ExitStack() as stack:
        yield {kv: stack.enter_context(server(smollm2, kv)) for kv in ("f16", "q8_0", "q4_0")}


class TestContract(EngineContract):
    """SmolLM2 with Q4_1 weights under q4_0/q4_0, over the API alone."""

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls, urls: dict[str, str]) -> OpenAIEngine:
        """The engine with a server of each side."""
        return OpenAIEngine({"reference_url": urls["f16"], "candidate_url": urls["q4_0"]}, cache_folder())

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls, smollm2: Path) -> str:
        """SmolLM2, whose tokenizer is used here and whose weights are the servers'."""
        return str(smollm2)

    def test_checks_have_no_failure_where_the_tests_run(self, engine: OpenAIEngine, model: str) -> None:  # type: ignore[override]
        found = engine.check(model)
        assert [check for check in found if check.status == "fail"] == []
        assert found[-1].message == STATED


def divergences(
    url: str, base: Base, windows: tuple[Window, ...], model: Path, kv: KVConfig, folder: Path
) -> Divergence:
    engine = OpenAIEngine({"candidate_url": url, "reference_kv": str(PLAIN)}, folder)
    request = CompareBase(windows=windows, protocol="decode", base=base.blob)
    spec = LoadSpec(model=str(model), kv=kv, max_tokens=512)
    with engine.load(spec, BlobFolder(folder / "blobs")) as session:
        ((_, found),) = session.run([request])
    assert isinstance(found, Divergence)
    return found


def test_the_reference_is_itself_and_formats_come_in_their_order(
    urls: dict[str, str], smollm2: Path, tmp_path: Path
) -> None:
    cut = cut_windows(load_corpus(None), load_tokenizer(smollm2), count=2, size=96)
    windows = tuple(Window(tokens=window.tokens, start=48) for window in cut)
    engine = OpenAIEngine({"reference_url": urls["f16"]}, tmp_path)
    spec = LoadSpec(model=str(smollm2), kv=PLAIN, max_tokens=512)
    write = WriteBase(windows=windows, protocol="decode")
    with engine.load(spec, BlobFolder(tmp_path / "blobs")) as session:
        ((_, base),) = session.run([write])
        assert isinstance(base, Base)
        ((_, own),) = session.run([CompareBase(windows=windows, protocol="decode", base=base.blob)])
    assert isinstance(own, Divergence)
    assert np.all(own.kl == 0.0)
    assert np.all(own.token_nll_delta == 0.0)
    means = {}
    for kv in ("q8_0", "q4_0"):
        found = divergences(urls[kv], base, windows, smollm2, parse_kv(f"ctk={kv},ctv={kv}"), tmp_path)
        assert found.estimator == "kl-top1000"
        means[kv] = float(found.kl.mean())
    assert 0.0 < means["q8_0"] < means["q4_0"]
    assert means["q8_0"] < 0.02  # llama-perplexity has .0042 over 8 windows of these weights, and .055 for q4_0
    assert 0.015 < means["q4_0"] < 0.2


def test_one_server_behind_two_addresses_is_refused(urls: dict[str, str], smollm2: Path) -> None:
    def forward(path: str, body: Mapping[str, Any] | None) -> Reply:
        answer = requests.request("GET" if body is None else "POST", urls["f16"] + path, json=body, timeout=60)
        return Reply(body=answer.content, status=answer.status_code)

    with serving_fake(forward) as proxy:
        engine = OpenAIEngine({"reference_url": urls["f16"], "candidate_url": proxy.url})
        engine.check_kv(str(smollm2), PLAIN)
        with pytest.raises(UsageError, match="are one process"):
            engine.check_kv(str(smollm2), parse_kv("ctk=q8_0,ctv=q8_0"))


def test_an_id_outside_the_vocabulary_does_not_reach_it(urls: dict[str, str], smollm2: Path, tmp_path: Path) -> None:
    engine = OpenAIEngine({"reference_url": urls["f16"]})
    with engine.load(LoadSpec(model=str(smollm2), kv=PLAIN, max_tokens=64), BlobFolder(tmp_path)) as session:
        found = dict(
            session.run([Generate(prompt=(1, 49152), max_new_tokens=2), Generate(prompt=(1, 30), max_new_tokens=2)])
        )
    wrong, right = found.values()
    assert isinstance(wrong, Failure)
    assert isinstance(right, Generation)


@pytest.mark.parametrize("candidate", ["floor", "q8_0"])
def test_a_whole_run(urls: dict[str, str], smollm2: Path, tmp_path: Path, candidate: str) -> None:
    words = ["score", "--backend", "openai", "--model", str(smollm2), "--cache-dir", str(tmp_path / "cache")]
    words += ["--max-prompts", "2", "--n-predict", "16", "--chunks", "2", "--ctx", "64", "--axes", "trajectory,kld"]
    words += ["--reference-url", urls["f16"], "--progress", "none", "--json-out", str(tmp_path / "r.json")]
    if candidate == "floor":
        words += ["--measure-floor"]
    else:
        words += ["--candidate", f"ctk={candidate},ctv={candidate}", "--candidate-url", f"{urls[candidate]}/v1"]
    assert main(words) == 0
    report = json.loads((tmp_path / "r.json").read_text())
    if candidate == "floor":
        scores = {axis["axis"]: axis["score"]["value"] for axis in report["floor"]["axes"]}
        assert scores == {"trajectory": 100.0, "kld": 100.0}
        kld = next(axis for axis in report["floor"]["axes"] if axis["axis"] == "kld")
        assert kld["statistics"]["mean_kl_nats"]["value"] == 0.0
    else:
        (found,) = report["candidates"]
        assert found["effective"]["notes"][0] == STATED
        kld = next(axis for axis in found["axes"] if axis["axis"] == "kld")
        assert (kld["status"], kld["protocol"], kld["estimator"]) == ("ok", "decode", "kl-top1000")
        assert "127.0.0.1" not in json.dumps(report["candidates"])
