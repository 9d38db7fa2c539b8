"""The engine over stand-ins: which server answers for what, in which order, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from refract.axes.kld import Kld
from refract.axes.trajectory import Trajectory
from refract.backends.sglang.engine import SGLangEngine
from refract.cli import main
from refract.engine import Capability, LoadSpec
from refract.errors import (
    ConfigMismatchError,
    EngineError,
    IncompleteError,
    KVUnsupportedError,
    ModelError,
    RefractError,
    UsageError,
)
from refract.kv import KVConfig, parse_kv
from refract.run.blobs import BlobFolder
from refract.run.runner import RunResult, run
from refract.run.spec import RunSpec
from refract.run.store import AnswerStore
from refract.testing import EngineContract
from tests.axes.support import corpus, prompt_set, prose
from tests.backends.fake_http import FakeServer, Reply, say, serving
from tests.backends.sglang.support import FakeSGLang, running, write_model

REFERENCE, E4M3, E5M2 = (f"ctk={name},ctv={name}" for name in ("f16", "fp8_e4m3", "fp8_e5m2"))
CANDIDATE = {"reference_kv": REFERENCE, "candidate_kv": E4M3}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


@contextmanager
def engine(cache: Path, **options: str) -> Iterator[SGLangEngine]:
    yield SGLangEngine({"patience_s": "1", "top_k": "64", **CANDIDATE, **options}, cache)


def asked(model: Path, *candidates: str, **changes: Any) -> RunSpec:
    """A small run of both axes."""
    return RunSpec(
        model=str(model),
        reference=parse_kv(REFERENCE),
        candidates=tuple(map(parse_kv, candidates or (E4M3,))),
        axes=(Trajectory(), Kld(chunks=3, ctx=32, along_trajectories=2)),
        prompts=prompt_set("Say why bridges stand.", "Name a river.", "What is a loom?"),
        corpus=corpus(one=prose(800, seed=1)),
        n_predict=12,
        **changes,
    )


def scored(spec: RunSpec, own: SGLangEngine, folder: Path) -> RunResult:
    with AnswerStore(folder / "store") as store:
        return run(spec, own, store)


def generated(server: FakeServer) -> int:
    return sum(path == "/generate" for path, _ in server.asked)


def refused(own: SGLangEngine, model: Path, text: str, folder: Path) -> RefractError:
    """What a session under `text` is refused with."""
    spec = LoadSpec(model=str(model), kv=parse_kv(text), max_tokens=64)
    with pytest.raises(RefractError) as caught, own.load(spec, BlobFolder(folder / "blobs")):
        pass
    return caught.value


# Options.


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "no address of one is given"),
        ({"url": "http://a", "launch": "1"}, "starts servers, and an address"),
        ({"url": "http://a", "dtype": "float32"}, "no option 'dtype'"),
        ({"url": "http://a", "top_k": "many"}, "top_k must be a number"),
        ({"url": "localhost"}, "no URL of a server"),
        ({"reference_url": "http://a:1", "candidate_url": "HTTP://A:1/"}, "one server cannot be both"),
    ],
)
def test_options_that_cannot_be_are_refused(options: Mapping[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        SGLangEngine(options)
    assert caught.value.hint


def test_a_model_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError), engine(tmp_path, url="http://a") as own:
        own.check_kv(str(tmp_path / "nothing"), parse_kv(REFERENCE))


@pytest.mark.parametrize("text", ["ctk=fp8_e4m3,ctv=f16", "ctk=q8_0,ctv=q8_0"])
def test_a_configuration_that_no_server_has_is_refused(text: str, model: Path, tmp_path: Path) -> None:
    with pytest.raises(KVUnsupportedError), engine(tmp_path, url="http://a") as own:
        own.check_kv(str(model), parse_kv(text))


# Two servers.


def test_two_servers_answer_for_their_sides(model: Path, tmp_path: Path) -> None:
    with (
        running() as (_, plain),
        running(kv_type="fp8_e4m3", seed=2) as (_, small),
        engine(tmp_path, reference_url=plain.url, candidate_url=small.url) as own,
    ):
        found = scored(asked(model), own, tmp_path)
        assert generated(plain) > 0
        assert generated(small) > 0
    trajectory, kld = found.candidates[0].axes
    assert (trajectory.status, kld.status) == ("ok", "ok")
    assert (kld.protocol, kld.estimator) == ("prefill", "kl-top64")
    assert kld.statistics["mean_kl_nats"].value > 1e-4
    assert found.candidates[0].effective.k == "fp8_e4m3"
    assert "cannot be checked" in " ".join(found.candidates[0].effective.notes)


def test_the_reference_against_itself_is_exactly_the_same(model: Path, tmp_path: Path) -> None:
    with running() as (_, plain), engine(tmp_path, url=plain.url) as own:
        found = scored(asked(model, REFERENCE), own, tmp_path)
    trajectory, kld = found.candidates[0].axes
    assert trajectory.score is not None
    assert trajectory.score.value == 100.0
    assert kld.statistics["mean_kl_nats"].value == 0.0


@pytest.mark.parametrize("kv_type", ["auto", "fp8_e5m2"])
def test_a_server_of_another_type_than_asked_is_refused(kv_type: str, model: Path, tmp_path: Path) -> None:
    with (
        running() as (_, plain),
        running(kv_type=kv_type, seed=2) as (_, other),
        engine(tmp_path, reference_url=plain.url, candidate_url=other.url) as own,
    ):
        error = refused(own, model, E4M3, tmp_path)
        assert generated(other) == 0
    assert isinstance(error, ConfigMismatchError)
    assert f"--kv-cache-dtype {kv_type}" in error.message
    assert "--kv-cache-dtype fp8_e4m3" in str(error.hint)


def test_two_addresses_of_one_server_are_refused(model: Path, tmp_path: Path) -> None:
    fake = FakeSGLang(kv_type="fp8_e4m3")
    with (
        serving(fake.answer) as one,
        serving(fake.answer) as other,
        engine(tmp_path, reference_url=one.url, candidate_url=other.url) as own,
        pytest.raises(UsageError, match="lead to the same one"),
    ):
        own.check_kv(str(model), parse_kv(E4M3))


def test_servers_that_differ_in_more_than_the_cache_are_refused(model: Path, tmp_path: Path) -> None:
    with (
        running() as (_, plain),
        running(kv_type="fp8_e4m3", attention="triton") as (_, other),
        engine(tmp_path, reference_url=plain.url, candidate_url=other.url) as own,
        pytest.raises(ConfigMismatchError, match="attention_backend is torch_native and triton"),
    ):
        scored(asked(model), own, tmp_path)


def test_a_server_with_too_short_a_context_is_refused(model: Path, tmp_path: Path) -> None:
    with running(extra={"context_length": 32}) as (_, plain), engine(tmp_path, url=plain.url) as own:
        assert own.context_length(str(model)) == 32
        assert "sequences of 32 tokens" in refused(own, model, REFERENCE, tmp_path).message


def test_a_server_here_with_another_model_is_refused(model: Path, tmp_path: Path) -> None:
    other = write_model(tmp_path / "other", weights=b"others")
    with running(model=str(other)) as (_, plain), engine(tmp_path, url=plain.url) as own:
        assert "runs other, whose files are not" in refused(own, model, REFERENCE, tmp_path).message
    same = write_model(tmp_path / "elsewhere")
    with running(model=str(same)) as (_, plain), engine(tmp_path, url=plain.url) as own:
        spec = LoadSpec(model=str(model), kv=parse_kv(REFERENCE), max_tokens=64)
        with own.load(spec, BlobFolder(tmp_path / "blobs")) as session:
            assert "cannot be checked" not in " ".join(session.effective_kv.notes)


def test_a_server_elsewhere_with_another_tokenizer_is_refused(model: Path, tmp_path: Path) -> None:
    fake = FakeSGLang()

    def answer(path: str, body: Mapping[str, Any] | None) -> Reply:
        return say({"tokens": [1, 2, 3]}) if path == "/tokenize" else fake.answer(path, body)

    with serving(answer) as server, engine(tmp_path, url=server.url) as own:
        assert "tokenizer gives other ids" in refused(own, model, REFERENCE, tmp_path).message


# One server after the other, at one address.


def test_one_address_for_both_sides_takes_two_commands_and_asks_nothing_twice(model: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        now = [FakeSGLang()]
        server = stack.enter_context(serving(lambda path, body: now[0].answer(path, body)))
        options = {"url": server.url}
        with engine(tmp_path, **options) as own, pytest.raises(IncompleteError) as caught:
            scored(asked(model), own, tmp_path)
        assert caught.value.exit_code == 5
        assert "stop it, start" in str(caught.value.hint)
        assert "--kv-cache-dtype fp8_e4m3" in str(caught.value.hint)
        assert "run the same command again" in str(caught.value.hint)

        now[0] = FakeSGLang(kv_type="fp8_e4m3", seed=2)
        before = len(server.asked)
        with engine(tmp_path, **options) as own:
            found = scored(asked(model), own, tmp_path)
        asked_later = [json.dumps(body) for path, body in server.asked[before:] if path == "/generate"]
    assert found.loads == 1
    assert found.answers["stored"] > 0
    assert asked_later
    assert [axis.status for axis in found.candidates[0].axes] == ["ok", "ok"]


def test_one_command_given_twice_says_what_to_start_and_then_finishes(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["score", "--backend", "sglang", "--model", str(model), "--candidate", E4M3, "--axes", "trajectory,kld"]
    words += ["--max-prompts", "3", "--n-predict", "8", "--chunks", "2", "--ctx", "32", "--progress", "none"]
    now = [FakeSGLang()]
    with serving(lambda path, body: now[0].answer(path, body)) as server:
        words += ["--cache-dir", str(tmp_path / "cache"), "--url", server.url]
        assert main(words) == 5
        said = capsys.readouterr().err
        assert "start python -m sglang.launch_server with --kv-cache-dtype fp8_e4m3" in said
        assert "Traceback" not in said
        now[0] = FakeSGLang(kv_type="fp8_e4m3", seed=2)
        assert main(words) == 0
    assert "REFRACT[trajectory+kld]" in capsys.readouterr().out


def test_the_candidates_server_first_is_the_wrong_order_and_says_so(model: Path, tmp_path: Path) -> None:
    with running(kv_type="fp8_e4m3") as (_, server), engine(tmp_path, url=server.url) as own:
        with pytest.raises(IncompleteError) as caught:
            scored(asked(model), own, tmp_path)
        assert generated(server) == 0
    assert "keeps fp8_e4m3" in caught.value.message
    assert "--kv-cache-dtype auto" in str(caught.value.hint)


def test_a_type_that_nobody_asked_for_is_no_turn_of_anyone(model: Path, tmp_path: Path) -> None:
    with running(kv_type="fp8_e5m2") as (_, server), engine(tmp_path, url=server.url) as own:
        assert isinstance(refused(own, model, REFERENCE, tmp_path), ConfigMismatchError)


def test_a_server_that_came_back_otherwise_is_refused(model: Path, tmp_path: Path) -> None:
    now = [FakeSGLang()]
    with serving(lambda path, body: now[0].answer(path, body)) as server:
        with engine(tmp_path, url=server.url) as own, pytest.raises(IncompleteError):
            scored(asked(model), own, tmp_path)
        now[0] = FakeSGLang(kv_type="fp8_e4m3", version="0.5.16")
        with engine(tmp_path, url=server.url) as own, pytest.raises(ConfigMismatchError, match="version is"):
            scored(asked(model), own, tmp_path)


def test_servers_that_are_read_in_different_ways_end_in_a_refusal_and_not_in_turns_without_end(
    model: Path, tmp_path: Path
) -> None:
    now = [FakeSGLang()]
    with serving(lambda path, body: now[0].answer(path, body)) as server:
        with engine(tmp_path, url=server.url) as own, pytest.raises(IncompleteError):
            scored(asked(model), own, tmp_path)
        now[0] = FakeSGLang(kv_type="fp8_e4m3", attention="triton")
        with engine(tmp_path, url=server.url) as own, pytest.raises(ConfigMismatchError, match="attention_backend"):
            scored(asked(model), own, tmp_path)


def test_the_other_side_without_an_address_says_what_to_start(model: Path, tmp_path: Path) -> None:
    with running() as (_, plain), engine(tmp_path, reference_url=plain.url) as own:
        error = refused(own, model, E4M3, tmp_path)
    assert isinstance(error, IncompleteError)
    assert "--kv-cache-dtype fp8_e4m3" in str(error.hint)
    assert "--candidate-url" in str(error.hint)


# What is read.


def test_what_the_attention_reads_decides_the_protocol(model: Path, tmp_path: Path) -> None:
    kv = parse_kv(REFERENCE)
    both = {Capability.KL_PREFILL, Capability.KL_DECODE, Capability.KL_DEEP}
    for settings, expected in (
        ({}, both),
        ({"attention": "triton"}, {Capability.KL_DECODE}),
        ({"attention": "triton", "page_size": 64}, set()),
        ({"radix": False}, {Capability.KL_PREFILL, Capability.KL_DEEP}),
    ):
        with running(**settings) as (_, server), engine(tmp_path, url=server.url) as own:
            assert own.capabilities(kv) & both == expected


@pytest.mark.parametrize("attention", ["torch_native", "triton"])
def test_a_server_that_computes_no_model_is_refused(attention: str, model: Path, tmp_path: Path) -> None:
    with running(sane=False, attention=attention) as (_, server), engine(tmp_path, url=server.url) as own:
        spec = LoadSpec(model=str(model), kv=parse_kv(REFERENCE), max_tokens=256)
        with pytest.raises(EngineError, match=r"SGLang 0.5.15.post1 returned garbage under ctk=f16,ctv=f16"):
            own.load(spec, BlobFolder(tmp_path / "blobs")).__enter__()


def test_a_prefill_that_is_blind_is_read_in_steps(model: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"attention": "triton", "reads_cache": False}
    with (
        running(**settings) as (_, plain),
        running(**settings, kv_type="fp8_e4m3", seed=2) as (_, small),
        engine(tmp_path, reference_url=plain.url, candidate_url=small.url) as own,
    ):
        found = scored(asked(model), own, tmp_path)
    kld = found.candidates[0].axes[1]
    assert (kld.status, kld.protocol) == ("ok", "decode")
    assert kld.statistics["mean_kl_nats"].value > 1e-4


def test_a_blind_prefill_that_says_it_reads_its_cache_is_not_ok(model: Path, tmp_path: Path) -> None:
    with (
        running(reads_cache=False) as (_, plain),
        running(reads_cache=False, kv_type="fp8_e4m3", seed=2) as (_, small),
        engine(tmp_path, reference_url=plain.url, candidate_url=small.url) as own,
    ):
        found = scored(asked(model), own, tmp_path)
    kld = found.candidates[0].axes[1]
    assert kld.protocol == "prefill"
    assert kld.status == "not-exercised"
    assert kld.score is None


def test_identities_hold_what_decides_numbers_and_no_address(model: Path, tmp_path: Path) -> None:
    spec = LoadSpec(model=str(model), kv=parse_kv(REFERENCE), max_tokens=64)
    identities = []
    for settings in ({}, {"seed": 2}, {"version": "0.5.16"}, {"extra": {"quantization": "fp8"}}):
        with running(**settings) as (_, server), engine(tmp_path / "x", url=server.url) as own:
            identities.append(own.identify(spec))
            assert server.url not in json.dumps(dict(identities[-1].options))
    assert identities[0] == identities[1]
    assert len({identity.digest for identity in identities}) == 3


# Faults.


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (Reply(body=b'{"output_ids": [1', cut=9), "closed the connection"),
        (Reply(body=b"<html>gateway</html>", kind="text/html"), "not JSON"),
        (Reply(body=b'{"text": "x"}'), "without token ids"),
        (Reply(body=b"{}", wait_s=2.0), "within 1 s"),
        (say({"output_ids": [1], "meta_info": {"id": "another"}}), "answer to another request"),
    ],
)
def test_faults_of_a_server_end_the_run_in_one_line(reply: Reply, words: str, model: Path, tmp_path: Path) -> None:
    fake = FakeSGLang()
    answer = lambda path, body: reply if path == "/generate" else fake.answer(path, body)  # noqa: E731
    with serving(answer) as server, engine(tmp_path, url=server.url, timeout_s="1") as own:
        with pytest.raises(RefractError, match=words) as caught:
            scored(asked(model), own, tmp_path)
        assert caught.value.exit_code in (4, 5)


def test_a_request_that_is_refused_is_one_failure(model: Path, tmp_path: Path) -> None:
    fake, count = FakeSGLang(), [0]

    def answer(path: str, body: Mapping[str, Any] | None) -> Reply:
        count[0] += path == "/generate"
        if path == "/generate" and count[0] == 2:  # the first is the sentence that every session begins with
            return say({"error": {"message": "out of sorts"}}, status=500)
        return fake.answer(path, body)

    with serving(answer) as server, engine(tmp_path, url=server.url) as own:
        found = scored(asked(model, REFERENCE), own, tmp_path)
    assert "out of sorts" in repr(found.candidates[0].axes)


def test_a_server_that_is_still_loading_is_waited_for(model: Path, tmp_path: Path) -> None:
    fake, count = FakeSGLang(), [0]

    def answer(path: str, body: Mapping[str, Any] | None) -> Reply:
        count[0] += 1
        return say({"error": "loading"}, status=503) if count[0] < 4 else fake.answer(path, body)

    with serving(answer) as server, engine(tmp_path, url=server.url, patience_s="10") as own:
        spec = LoadSpec(model=str(model), kv=parse_kv(REFERENCE), max_tokens=64)
        with own.load(spec, BlobFolder(tmp_path / "blobs")) as session:
            assert session.effective_kv.k == "f32"


def test_no_server_at_all_is_incomplete(model: Path, tmp_path: Path) -> None:
    with running() as (_, server):
        url = server.url
    with engine(tmp_path, url=url) as own:
        error = refused(own, model, REFERENCE, tmp_path)
        assert [check.status for check in own.check(str(model))] == ["ok", "fail"]
    assert isinstance(error, IncompleteError)
    assert "refused" in error.message
    assert "--kv-cache-dtype auto" in str(error.hint)


class TestContract(EngineContract):
    """The stand-in under the contract that every engine passes."""

    forced_tolerance_nats = 1e-4

    @pytest.fixture(scope="class")
    @classmethod
    def servers(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
        """A plain server and one with a compressed cache."""
        with running() as (_, plain), running(kv_type="fp8_e4m3", seed=2) as (_, small):
            yield {"reference_url": plain.url, "candidate_url": small.url}

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls, servers: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> SGLangEngine:
        """The engine."""
        return SGLangEngine({**servers, **CANDIDATE, "top_k": "64"}, tmp_path_factory.mktemp("cache"))

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls, tmp_path_factory: pytest.TempPathFactory) -> str:
        """The stand-in's model."""
        return str(write_model(tmp_path_factory.mktemp("model")))

    @pytest.fixture(scope="class")
    @classmethod
    def lossy_kv(cls) -> KVConfig:
        """e4m3 on both sides."""
        return parse_kv(E4M3)

    @pytest.fixture(scope="class")
    @classmethod
    def refused_kv(cls) -> KVConfig:
        """Keys and values of two types."""
        return parse_kv("ctk=fp8_e4m3,ctv=f16")
