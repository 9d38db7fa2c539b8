"""The vLLM backend against servers that were started by hand: the contract, an exact floor, the order of formats."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests

import refract.backends.vllm
from refract.axes.windows import cut_windows
from refract.backends.openai.engine import OpenAIEngine
from refract.backends.vllm.http_session import HTTPVLLM
from refract.cli import main
from refract.data.corpus import load_corpus
from refract.engine import LoadSpec, Session
from refract.errors import ConfigMismatchError
from refract.kv import KVConfig, parse_kv
from refract.run.blobs import BlobFolder
from refract.testing import EngineContract
from refract.work import Base, CompareBase, Divergence, Window, WriteBase
from tests.backends.fake_http import Reply, serving
from tests.engines.vllm_servers import starting

PLAIN = parse_kv("ctk=f16,ctv=f16")
E4M3, E5M2 = (parse_kv(f"ctk={name},ctv={name}") for name in ("fp8_e4m3", "fp8_e5m2"))


@pytest.fixture(scope="module")
def urls(vllm_python: str, smollm2_hf: Path) -> Iterator[dict[str, str]]:
    """A server of each KV type, all started at once."""
    with ExitStack() as stack:
        types = ("auto", "fp8_e4m3", "fp8_e5m2")
        started = {kv: stack.enter_context(starting(vllm_python, smollm2_hf, kv)) for kv in types}
        yield {kv: server.ready() for kv, server in started.items()}


class TestContract(EngineContract):
    """SmolLM2 in float32 under fp8_e4m3. Cached blocks of one text are reused, which moves sums in another order."""

    forced_tolerance_nats = 1e-3
    batch_tolerance_nats = 1e-4

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls, urls: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> HTTPVLLM:
        """The engine with a server of each side."""
        cache = tmp_path_factory.mktemp("cache")
        return HTTPVLLM({"reference_url": urls["auto"], "candidate_url": urls["fp8_e4m3"]}, cache)

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls, smollm2_hf: Path) -> str:
        """SmolLM2 as the servers read it."""
        return str(smollm2_hf)

    @pytest.fixture(scope="class")
    @classmethod
    def lossy_kv(cls) -> KVConfig:
        """What the candidate's server keeps."""
        return E4M3

    @pytest.fixture(scope="class")
    @classmethod
    def refused_kv(cls) -> KVConfig:
        """A format vLLM does not have."""
        return parse_kv("ctk=affine4,ctv=f16")


def load(url: str, kv: KVConfig, model: Path, folder: Path, side: str = "reference") -> Any:
    engine = HTTPVLLM({f"{side}_url": url, "reference_kv": str(PLAIN)}, folder)
    return engine.load(LoadSpec(model=str(model), kv=kv, max_tokens=512), BlobFolder(folder / "blobs"))


def compare(session: Session, windows: tuple[Window, ...], base: Base) -> Divergence:
    ((_, found),) = session.run([CompareBase(windows=windows, protocol="decode", base=base.blob)])
    assert isinstance(found, Divergence)
    return found


def windows_of(engine: HTTPVLLM, model: Path, *, size: int, start: int) -> tuple[Window, ...]:
    cut = cut_windows(load_corpus(None), engine.tokenizer(str(model)), count=2, size=size)
    return tuple(Window(tokens=window.tokens, start=start) for window in cut)


def test_the_reference_is_itself_and_formats_come_in_their_order(
    urls: dict[str, str], smollm2_hf: Path, tmp_path: Path
) -> None:
    windows = windows_of(HTTPVLLM({"url": urls["auto"]}), smollm2_hf, size=160, start=136)
    with load(urls["auto"], PLAIN, smollm2_hf, tmp_path) as reference:
        ((_, base),) = reference.run([WriteBase(windows=windows, protocol="decode")])
        assert isinstance(base, Base)
        own = compare(reference, windows, base)
        plain = reference.effective_kv
    assert np.all(own.kl == 0.0)
    assert np.all(own.token_nll_delta == 0.0)
    assert plain.bytes_per_token == 30 * 2 * 3 * 64 * 4  # float32 by --dtype, as the number of blocks says
    means = {}
    for kv in (E4M3, E5M2):
        with load(urls[kv.k.name], kv, smollm2_hf, tmp_path, "candidate") as candidate:
            found, effective = compare(candidate, windows, base), candidate.effective_kv
        assert found.estimator == "kl-top1000"
        assert (effective.k, effective.v, effective.layers_compressed) == (kv.k.name, kv.k.name, 30)
        assert effective.bytes_per_token == 30 * 2 * 3 * 64
        means[kv.k.name] = float(found.kl.mean())
    assert 0.0 < means["fp8_e4m3"] < means["fp8_e5m2"]
    assert 0.002 < means["fp8_e4m3"] < 0.2  # .052 over 256 tokens of prose in this engine, .189 for e5m2


def test_a_server_of_another_type_than_asked_is_refused(urls: dict[str, str], smollm2_hf: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigMismatchError, match="keeps fp8_e5m2, and fp8_e4m3 is asked for"):
        load(urls["fp8_e5m2"], E4M3, smollm2_hf, tmp_path, "candidate").__enter__()


def test_the_logits_processor_forces_a_text_in_one_request(
    vllm_python: str, urls: dict[str, str], smollm2_hf: Path, tmp_path: Path
) -> None:
    folder = Path(refract.backends.vllm.__file__).parent / "inside"
    flags = ("--logits-processors", "forcing:Forcing")
    windows = windows_of(HTTPVLLM({"url": urls["auto"]}), smollm2_hf, size=96, start=80)
    with starting(vllm_python, smollm2_hf, "auto", *flags, env={"PYTHONPATH": str(folder)}) as server:
        with load(urls["auto"], PLAIN, smollm2_hf, tmp_path) as stock:
            ((_, base),) = stock.run([WriteBase(windows=windows, protocol="decode")])
        assert isinstance(base, Base)
        with load(server.ready(), PLAIN, smollm2_hf, tmp_path) as forcing:
            found = compare(forcing, windows, base)
            assert any("in one request by refract's logits processor" in note for note in forcing.effective_kv.notes)
    assert np.all(np.abs(found.kl) < 1e-6)  # one path, sums in another order
    assert found.same_top.all()


def test_the_openai_backend_lists_the_same_less_directly(
    urls: dict[str, str], smollm2_hf: Path, tmp_path: Path
) -> None:
    windows = windows_of(HTTPVLLM({"url": urls["auto"]}), smollm2_hf, size=40, start=32)
    general = OpenAIEngine({"reference_url": urls["auto"]}, tmp_path)
    spec = LoadSpec(model=str(smollm2_hf), kv=PLAIN, max_tokens=64)
    with general.load(spec, BlobFolder(tmp_path / "blobs")) as session:
        ((_, base),) = session.run([WriteBase(windows=windows, protocol="decode")])
        assert isinstance(base, Base)
        assert np.all(compare(session, windows, base).kl == 0.0)
        assert "stated, not read" in session.effective_kv.notes[0]
    with load(urls["auto"], PLAIN, smollm2_hf, tmp_path) as own:
        found = compare(own, windows, base)
    assert found.estimator == "kl-top1000"
    assert np.all(np.abs(found.kl) < 1e-6)


def test_one_address_is_answered_in_two_runs(
    urls: dict[str, str], smollm2_hf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    behind = [urls["auto"]]

    def forward(path: str, body: Mapping[str, Any] | None) -> Reply:
        answer = requests.request("GET" if body is None else "POST", behind[0] + path, json=body, timeout=600)
        kind = answer.headers.get("Content-Type", "")
        return Reply(body=answer.content, status=answer.status_code, kind=kind)

    with serving(forward) as server:
        words = ["score", "--backend", "vllm", "--url", server.url, "--model", str(smollm2_hf)]
        words += ["--candidate", "ctk=q8_0,ctv=q8_0", "--axes", "trajectory,kld", "--max-prompts", "2", "--chunks", "2"]
        words += ["--n-predict", "12", "--ctx", "48", "--cache-dir", str(tmp_path / "cache"), "--progress", "none"]
        words += ["--json-out", str(tmp_path / "report.json")]
        assert main(words) == 5
        told = capsys.readouterr().err
        assert "keeps auto, and fp8_e4m3 is asked for" in told
        assert "run the same command again" in told
        behind[0] = urls["fp8_e4m3"]
        assert main(words) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    (found,) = report["candidates"]
    assert found["kv"] == "ctk=q8_0,ctv=q8_0"
    assert found["effective"]["k"] == "fp8_e4m3"
    assert any("→ fp8_e4m3, read from the server" in note for note in found["effective"]["notes"])
    kld = next(axis for axis in found["axes"] if axis["axis"] == "kld")
    assert (kld["status"], kld["protocol"], kld["estimator"]) == ("ok", "decode", "kl-top1000")
