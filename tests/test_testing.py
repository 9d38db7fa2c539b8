"""The fake engine passes the contract that every engine must pass, engines with a fault do not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from refract.engine import Engine, LoadSpec, Session, Tokenizer
from refract.errors import ConfigMismatchError
from refract.kv import KVConfig, parse_kv
from refract.run.blobs import BlobFolder
from refract.testing import Behaviour, EngineContract, FakeEngine, FakeTokenizer
from refract.testing.model import strength_of
from refract.testing.tokenizer import EOS
from refract.work import (
    Answer,
    Base,
    CompareBase,
    Divergence,
    Failure,
    Generate,
    Generation,
    Message,
    Request,
    Window,
    WriteBase,
)

PLAIN, LOSSY = parse_kv("ctk=f16,ctv=f16"), parse_kv("ctk=q4_0,ctv=q4_0")
PROMPT = FakeTokenizer().render([Message(role="user", content="Where is the harbour?")])
ASK = Generate(prompt=PROMPT, max_new_tokens=40, top_k=20)


class TestFakeEngine(EngineContract):
    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls) -> FakeEngine:
        return FakeEngine()

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls) -> str:
        return "any"

    @pytest.fixture(scope="class")
    @classmethod
    def refused_kv(cls) -> KVConfig:
        return parse_kv("ctk=fp8_e5m2,ctv=f16")


BROKEN = """
from dataclasses import dataclass, replace
import numpy as np, pytest
from refract.kv import parse_kv
from refract.testing import EngineContract, FakeEngine, FakeSession, FakeTokenizer
from refract.work import CompareBase, Failure, Generate, Generation, ScoreTokens, TokenScores

def contract(make):
    class Contract(EngineContract):
        @pytest.fixture(scope="class")
        @classmethod
        def engine(cls): return make()
        @pytest.fixture(scope="class")
        @classmethod
        def model(cls): return "any"
        @pytest.fixture(scope="class")
        @classmethod
        def refused_kv(cls): return parse_kv("ctk=fp8_e5m2,ctv=f16")
    return Contract

def rewriting(rewrite):
    return contract(lambda: FakeEngine(candidate_behaviour=rewrite, break_reference=True))

seen = []
def reuse_prefix(request, answer):
    if isinstance(answer, Generation) and answer.listed is not None:
        seen.append(request)
        moved = replace(answer.listed, logprobs=answer.listed.logprobs + 1e-3 * (len(seen) > 4))
        return replace(answer, listed=moved)
    return answer
TestPrefixReuse = rewriting(reuse_prefix)

def unsorted(request, answer):
    if isinstance(answer, Generation) and answer.listed is not None:
        listed = answer.listed
        return replace(answer, listed=replace(listed, ids=listed.ids[:, ::-1], logprobs=listed.logprobs[:, ::-1]))
    return answer
TestUnsorted = rewriting(unsorted)

def no_tail(request, answer):
    if isinstance(answer, Generation) and answer.listed is not None:
        return replace(answer, listed=replace(answer.listed, tail=np.full_like(answer.listed.tail, -np.inf)))
    return answer
TestNoTail = rewriting(no_tail)

def wrong_stop(request, answer):
    return replace(answer, stop="eos") if isinstance(answer, Generation) else answer
TestWrongStop = rewriting(wrong_stop)

def shifted(request, answer):
    return replace(answer, logprobs=np.roll(answer.logprobs, 1)) if isinstance(answer, TokenScores) else answer
TestShiftedScores = rewriting(shifted)

def noisy_kl(request, answer):
    return replace(answer, kl=answer.kl + 1e-3) if isinstance(request, CompareBase) else answer
TestNoisyDivergence = rewriting(noisy_kl)

def blind_kl(request, answer):
    return replace(answer, kl=answer.kl * 0) if isinstance(request, CompareBase) else answer
TestBlindDivergence = rewriting(blind_kl)

def lenient(request, answer):
    return Generation(tokens=(65,), stop="length") if isinstance(answer, Failure) else answer
TestLenient = rewriting(lenient)

class OneIdentity(FakeEngine):
    def identify(self, spec): return FakeEngine.identify(self, replace(spec, kv=parse_kv("ctk=f16,ctv=f16")))
TestOneIdentity = contract(OneIdentity)

class AcceptsAll(FakeEngine):
    def check_kv(self, model, kv): return None
TestAcceptsAll = contract(AcceptsAll)

class Twice(FakeSession):
    def run(self, requests): yield from [pair for pair in FakeSession.run(self, requests) for _ in range(2)]
class AnswersTwice(FakeEngine):
    def load(self, spec, blobs):
        context = FakeEngine.load(self, spec, blobs)
        class Wrapped:
            def __enter__(self):
                session = context.__enter__(); session.__class__ = Twice; return session
            def __exit__(self, *error): return context.__exit__(*error)
        return Wrapped()
TestAnswersTwice = contract(AnswersTwice)

class Strips(FakeTokenizer):
    def decode(self, ids): return FakeTokenizer.decode(self, ids).strip()
class StripsText(FakeEngine):
    def tokenizer(self, model): return Strips()
TestStripsText = contract(StripsText)
"""

CAUGHT = {
    "TestPrefixReuse": "test_an_answer_does_not_depend_on_order_or_batch_mates",
    "TestUnsorted": "test_listed_tokens_are_sorted_and_leave_a_consistent_tail",
    "TestNoTail": "test_listed_tokens_are_sorted_and_leave_a_consistent_tail",
    "TestWrongStop": "test_stop_reason_and_length_agree",
    "TestShiftedScores": "test_forced_scores_agree_with_the_generation",
    "TestNoisyDivergence": "test_the_reference_does_not_diverge_from_itself[prefill]",
    "TestBlindDivergence": "test_a_lossy_cache_diverges[decode]",
    "TestLenient": "test_a_token_outside_the_vocabulary_is_no_crash",
    "TestOneIdentity": "test_identity_is_equal_for_equal_specs_and_differs_by_what_counts",
    "TestAcceptsAll": "test_a_refused_configuration_is_refused_before_the_load",
    "TestAnswersTwice": "test_greedy_generation_repeats_itself",
    "TestStripsText": "test_text_survives_the_tokenizer",
}


def test_the_contract_catches_engines_with_a_fault(tmp_path: Path) -> None:
    suite = tmp_path / "test_broken.py"
    suite.write_text(BROKEN)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-rfE",
        "-p",
        "no:cacheprovider",
        "--no-header",
        "--tb=no",
        str(suite),
    ]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ended = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    failed = set(re.findall(r"^(?:FAILED|ERROR) \S*::(Test\w+::\S+)", ended.stdout, re.MULTILINE))
    missed = [f"{engine}::{test}" for engine, test in CAUGHT.items() if f"{engine}::{test}" not in failed]
    assert missed == [], ended.stdout


def test_the_fakes_fulfil_the_protocols() -> None:
    engine: Engine = FakeEngine()
    tokenizer: Tokenizer = engine.tokenizer("any")
    assert engine.name == "fake"
    assert tokenizer.vocab_size == 256


def test_text_of_every_kind_survives_the_tokenizer_and_broken_text_is_replaced() -> None:
    tokenizer = FakeTokenizer()
    for text in ("", "a\0b", "né ✅ \u200b", "<eos>", " \r\n"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode((EOS, 0xC3)) == "<eos>\N{REPLACEMENT CHARACTER}"
    assert tokenizer.encode("\ud800") == (63,)
    plain = FakeTokenizer(has_chat_template=False)
    both = [Message(role="system", content="a"), Message(role="user", content="b")]
    assert plain.decode(plain.render(both)) == "<bos>a\n\nb"
    assert tokenizer.decode(tokenizer.render(both)) == "<bos><system>a<end><user>b<end><assistant>"


def test_fewer_bits_are_more_noise_and_no_two_formats_agree() -> None:
    names = ("f16", "q8_0", "q4_0", "turbo3", "turbo2")
    noise = [strength_of(parse_kv(f"ctk={name},ctv={name}")) for name in names]
    assert noise[0] == 0.0
    assert noise == sorted(noise)
    assert len(set(noise)) == len(noise)
    assert strength_of(parse_kv("ctk=q4_0,ctv=f16")) < strength_of(parse_kv("ctk=q4_0,ctv=q4_0"))
    assert strength_of(parse_kv("ctk=f16,ctv=f16,evict=recency")) > 0.0


def ask(engine: FakeEngine, folder: Path, kv: KVConfig, *requests: Request) -> list[Answer | Failure]:
    """Answers in the order of the requests."""
    with engine.load(LoadSpec(model="any", kv=kv, max_tokens=400), BlobFolder(folder)) as session:
        plain: Session = session
        found = dict(plain.run(requests))
    return [found[request] for request in requests]


def generated(behaviour: Behaviour, folder: Path, kv: KVConfig = LOSSY, request: Generate = ASK) -> Generation:
    (found,) = ask(FakeEngine(candidate_behaviour=behaviour), folder, kv, request)
    assert isinstance(found, Generation)
    return found


def diverged(engine: FakeEngine, folder: Path) -> Divergence:
    windows = (Window(tokens=PROMPT, start=2),)
    (base,) = ask(engine, folder, PLAIN, WriteBase(windows=windows, protocol="decode"))
    assert isinstance(base, Base)
    (found,) = ask(engine, folder, LOSSY, CompareBase(windows=windows, protocol="decode", base=base.blob))
    assert isinstance(found, Divergence)
    return found


def test_broken_candidates_are_broken_in_the_way_they_say(tmp_path: Path) -> None:
    (own,) = ask(FakeEngine(), tmp_path, PLAIN, ASK)
    assert isinstance(own, Generation)
    tokenizer = FakeTokenizer()
    early = generated(Behaviour.EARLY_STOP, tmp_path)
    assert (early.stop, len(early.tokens), early.tokens[-1]) == ("eos", 2, EOS)
    assert generated(Behaviour.EMPTY, tmp_path).tokens == (EOS,)
    junk = generated(Behaviour.CONSTANT_JUNK, tmp_path)
    other = generated(Behaviour.CONSTANT_JUNK, tmp_path, request=replace(ASK, prompt=PROMPT[:5]))
    assert tokenizer.decode(junk.tokens) == "The quick brown fox jumps over the lazy "
    assert junk.tokens == other.tokens
    loop = generated(Behaviour.LOOP, tmp_path)
    assert len(set(loop.tokens)) == 1
    assert len(generated(Behaviour.RUNAWAY, tmp_path, request=replace(ASK, max_new_tokens=300)).tokens) == 300
    nan = generated(Behaviour.NAN_LOGITS, tmp_path)
    assert nan.listed is not None
    assert np.isnan(nan.listed.logprobs[1:]).all()
    for behaviour in (Behaviour.NEVER_COMPRESSED, Behaviour.SILENTLY_UNCOMPRESSED):
        assert generated(behaviour, tmp_path).tokens == own.tokens
    for behaviour in Behaviour:
        assert generated(behaviour, tmp_path, kv=PLAIN).tokens == own.tokens, "the reference is not broken"


def test_divergences_of_broken_candidates(tmp_path: Path) -> None:
    sound = diverged(FakeEngine(), tmp_path)
    assert 0.0 < sound.kl.mean() < 1.0
    nan = diverged(FakeEngine(candidate_behaviour=Behaviour.NAN_LOGITS), tmp_path)
    assert np.isnan(nan.kl[1:]).all()
    assert nan.reference_finite.all()
    hidden = diverged(FakeEngine(candidate_behaviour=Behaviour.SILENTLY_UNCOMPRESSED), tmp_path)
    assert not hidden.kl.any()
    shift = diverged(FakeEngine(candidate_behaviour=Behaviour.TAIL_SHIFT), tmp_path)
    listed = diverged(FakeEngine(candidate_behaviour=Behaviour.TAIL_SHIFT, estimator_top_k=16), tmp_path)
    assert listed.estimator == "kl-top16"
    assert np.all(listed.kl <= shift.kl + 1e-6)
    assert shift.kl.mean() > 0.1
    assert listed.kl.mean() > 0.1, "mass that leaves the list is seen by its rest bin"


def test_what_the_engine_says_of_broken_candidates(tmp_path: Path) -> None:
    spec = LoadSpec(model="any", kv=LOSSY, max_tokens=10)
    with FakeEngine(candidate_behaviour=Behaviour.NEVER_COMPRESSED).load(spec, BlobFolder(tmp_path)) as session:
        assert session.effective_kv.layers_compressed == 0
    with FakeEngine(candidate_behaviour=Behaviour.SILENTLY_UNCOMPRESSED).load(spec, BlobFolder(tmp_path)) as session:
        assert session.effective_kv.layers_compressed == session.effective_kv.layers
    wrong = FakeEngine(candidate_behaviour=Behaviour.WRONG_SERVER)
    with pytest.raises(ConfigMismatchError), wrong.load(spec, BlobFolder(tmp_path)):
        pass


def test_a_known_response_is_given_scored_and_forgotten(tmp_path: Path) -> None:
    tokenizer = FakeTokenizer()
    known = (*tokenizer.encode("It is in the north."), EOS)
    engine = FakeEngine(respond=lambda prompt: known if prompt == PROMPT else None)
    (own,) = ask(engine, tmp_path, PLAIN, ASK)
    assert isinstance(own, Generation)
    assert own.tokens == known
    engine.candidate_behaviour = Behaviour.RETRIEVES_NOTHING
    (lost,) = ask(engine, tmp_path, LOSSY, ASK)
    assert isinstance(lost, Generation)
    assert lost.tokens[:5] != known[:5]


def test_a_request_longer_than_the_session_is_a_failure(tmp_path: Path) -> None:
    (found,) = ask(FakeEngine(), tmp_path, PLAIN, Generate(prompt=PROMPT, max_new_tokens=400))
    assert isinstance(found, Failure)
    assert found.kind == "too-long"
