"""What every engine must pass, as a pytest class: subclass it, provide three fixtures, run it on a small real model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, cast

import numpy as np
import pytest

from refract.engine import Capability, Engine, LoadSpec, Session, Tokenizer
from refract.errors import EngineError, KVUnsupportedError
from refract.kv import KVConfig, parse_kv
from refract.run.blobs import BlobFolder
from refract.run.replies import complaint, describe
from refract.work import (
    Answer,
    Base,
    CompareBase,
    Divergence,
    Failure,
    Generate,
    Generation,
    Message,
    Protocol,
    Request,
    ScoreTokens,
    TokenIds,
    TokenScores,
    Window,
    WriteBase,
)

TEXTS = (
    "The lighthouse keeper counted the ships every evening and wrote the number in a small blue book.",
    "Name three rivers in Europe and say where each of them ends.",
    "def area(width, height):\n    return width * height\n",
    "Ist es wahr, daß Wärme immer vom warmen zum kalten Körper fließt? Ja, außer man hilft nach. ✅",
)
_NEW_TOKENS = 12


def answers(session: Session, requests: Sequence[Request]) -> dict[Request, Answer | Failure]:
    """The session's answers by request; fails the test unless every request is answered once and in kind."""
    found: dict[Request, Answer | Failure] = {}
    for request, answer in session.run(tuple(requests)):
        assert request in requests, f"answered a request that was never asked: {describe(request)}"
        assert request not in found, f"answered twice: {describe(request)}"
        assert complaint(request, answer) is None, complaint(request, answer)
        found[request] = answer
    assert set(found) == set(requests), "left requests unanswered"
    return found


class EngineContract:
    """Subclasses provide class-scoped fixtures `engine`, `model` and `lossy_kv`, and may override the others.

    One session per configuration is loaded for all tests. The tolerances are 0 where the engine is deterministic for
    every batch; an engine whose kernels depend on the batch states how far its numbers move, in nats. Fixtures that are
    wider than a function are class methods (pytest 9).
    """

    batch_tolerance_nats: ClassVar[float] = 0.0
    forced_tolerance_nats: ClassVar[float] = 1e-4
    self_kl_nats: ClassVar[float] = 0.0
    max_tokens: ClassVar[int] = 512

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls) -> Engine:
        """The engine under test."""
        raise NotImplementedError("provide a class-scoped fixture `engine`")

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls) -> str:
        """A small model."""
        raise NotImplementedError("provide a class-scoped fixture `model`")

    @pytest.fixture(scope="class")
    @classmethod
    def reference_kv(cls) -> KVConfig:
        """A configuration without loss."""
        return parse_kv("ctk=f16,ctv=f16")

    @pytest.fixture(scope="class")
    @classmethod
    def lossy_kv(cls) -> KVConfig:
        """A configuration that stores both sides in fewer bits."""
        return parse_kv("ctk=q4_0,ctv=q4_0")

    @pytest.fixture(scope="class")
    @classmethod
    def refused_kv(cls) -> KVConfig | None:
        """A configuration the engine cannot carry out; None when it can carry out all."""
        return None

    @pytest.fixture(scope="class")
    @classmethod
    def options(cls) -> dict[str, str]:
        """The engine's own options."""
        return {}

    @pytest.fixture(scope="class")
    @classmethod
    def blobs(cls, tmp_path_factory: pytest.TempPathFactory) -> BlobFolder:
        """Where the sessions keep their bases."""
        return BlobFolder(Path(tmp_path_factory.mktemp("blobs")))

    @pytest.fixture(scope="class")
    @classmethod
    def reference_spec(cls, model: str, reference_kv: KVConfig, options: dict[str, str]) -> LoadSpec:
        """What the reference session is loaded with."""
        return LoadSpec(model=model, kv=reference_kv, max_tokens=cls.max_tokens, options=options)

    @pytest.fixture(scope="class")
    @classmethod
    def lossy_spec(cls, model: str, lossy_kv: KVConfig, options: dict[str, str]) -> LoadSpec:
        """What the candidate's session is loaded with."""
        return LoadSpec(model=model, kv=lossy_kv, max_tokens=cls.max_tokens, options=options)

    @pytest.fixture(scope="class")
    @classmethod
    def reference(cls, engine: Engine, reference_spec: LoadSpec, blobs: BlobFolder) -> Iterator[Session]:
        """A session under `reference_kv`."""
        with engine.load(reference_spec, blobs) as session:
            yield session

    @pytest.fixture(scope="class")
    @classmethod
    def lossy(cls, engine: Engine, lossy_spec: LoadSpec, blobs: BlobFolder) -> Iterator[Session]:
        """A session under `lossy_kv`."""
        with engine.load(lossy_spec, blobs) as session:
            yield session

    @pytest.fixture(scope="class")
    @classmethod
    def tokenizer(cls, engine: Engine, model: str) -> Tokenizer:
        """The model's tokenizer."""
        return engine.tokenizer(model)

    @pytest.fixture(scope="class")
    @classmethod
    def prompts(cls, tokenizer: Tokenizer) -> tuple[TokenIds, ...]:
        """Rendered prompts of different lengths."""
        return tuple(tokenizer.render([Message(role="user", content=text)]) for text in TEXTS)

    @pytest.fixture(scope="class")
    @classmethod
    def windows(cls, tokenizer: Tokenizer) -> tuple[Window, ...]:
        """Windows of plain text, their second half scored."""
        ids = [tokenizer.encode(text, add_special=True) for text in TEXTS]
        return tuple(Window(tokens=tokens, start=len(tokens) // 2) for tokens in ids)

    @pytest.fixture(scope="class")
    @classmethod
    def generated(cls, reference: Session, prompts: tuple[TokenIds, ...]) -> dict[TokenIds, Generation]:
        """The reference's continuation of every prompt, with eight tokens listed at each step."""
        requests = [Generate(prompt=prompt, max_new_tokens=_NEW_TOKENS, top_k=8) for prompt in prompts]
        found = answers(reference, requests)
        return {request.prompt: cast(Generation, found[request]) for request in requests}

    # Tokenizer and identity: nothing is loaded.

    def test_text_survives_the_tokenizer(self, tokenizer: Tokenizer) -> None:
        for text in TEXTS:
            assert tokenizer.decode(tokenizer.encode(text)) == text

    def test_token_ids_lie_in_the_vocabulary(self, tokenizer: Tokenizer, prompts: tuple[TokenIds, ...]) -> None:
        assert all(0 <= token < tokenizer.vocab_size for prompt in prompts for token in prompt)
        assert all(0 <= token < tokenizer.vocab_size for token in tokenizer.eos_ids)

    def test_a_rendered_prompt_holds_the_text_and_at_most_one_bos(self, tokenizer: Tokenizer) -> None:
        ids = tokenizer.render([Message(role="user", content=TEXTS[0])])
        assert TEXTS[0] in tokenizer.decode(ids)
        special = tokenizer.encode("x", add_special=True)[: -len(tokenizer.encode("x")) or None]
        if len(special) == 1:
            assert ids.count(special[0]) <= 1

    def test_identity_is_equal_for_equal_specs_and_differs_by_what_counts(
        self, engine: Engine, reference_spec: LoadSpec, lossy_spec: LoadSpec
    ) -> None:
        own = engine.identify(reference_spec)
        assert own == engine.identify(reference_spec)
        assert own.digest == engine.identify(reference_spec).digest
        assert own.digest != engine.identify(lossy_spec).digest
        longer = LoadSpec(
            model=reference_spec.model,
            kv=reference_spec.kv,
            max_tokens=reference_spec.max_tokens + 1,
            options=reference_spec.options,
        )
        assert own.digest != engine.identify(longer).digest
        assert own.model
        assert reference_spec.model not in own.model or not Path(reference_spec.model).exists()

    def test_a_refused_configuration_is_refused_before_the_load(
        self, engine: Engine, model: str, refused_kv: KVConfig | None, reference_kv: KVConfig, lossy_kv: KVConfig
    ) -> None:
        engine.check_kv(model, reference_kv)
        engine.check_kv(model, lossy_kv)
        if refused_kv is None:
            pytest.skip("the engine carries out every configuration")
        with pytest.raises(KVUnsupportedError):
            engine.check_kv(model, refused_kv)

    def test_checks_have_no_failure_where_the_tests_run(self, engine: Engine, model: str) -> None:
        assert [check for check in engine.check(model) if check.status == "fail"] == []

    # What was allocated.

    def test_effective_kv_is_the_requested_one(self, reference: Session, lossy: Session) -> None:
        plain, small = reference.effective_kv, lossy.effective_kv
        assert plain.layers_compressed == 0
        assert 0 < small.layers_compressed <= small.layers == plain.layers
        assert 0.0 < small.bytes_per_token < plain.bytes_per_token

    # Generation.

    def test_greedy_generation_repeats_itself(
        self, reference: Session, generated: dict[TokenIds, Generation], prompts: tuple[TokenIds, ...]
    ) -> None:
        again = self._generate(reference, prompts, salt="again")
        assert {prompt: found.tokens for prompt, found in again.items()} == {p: g.tokens for p, g in generated.items()}

    def test_an_answer_does_not_depend_on_order_or_batch_mates(
        self, reference: Session, generated: dict[TokenIds, Generation], prompts: tuple[TokenIds, ...]
    ) -> None:
        others = [self._generate(reference, prompts[::-1], salt="reversed")]
        others += [self._generate(reference, (prompt,), salt="alone") for prompt in prompts]
        for found in others:
            for prompt, generation in found.items():
                assert generation.tokens == generated[prompt].tokens
                self._close(generation, generated[prompt])

    def test_every_request_starts_from_an_empty_cache(
        self, reference: Session, generated: dict[TokenIds, Generation], prompts: tuple[TokenIds, ...]
    ) -> None:
        """A prompt asked after a longer one that begins with it, and after itself, is answered as if it came first."""
        first = prompts[0]
        longer = (*first, *generated[first].tokens[:4])
        found = self._generate(reference, (longer,), salt="longer")
        found |= self._generate(reference, (first,), salt="after")
        assert found[first].tokens == generated[first].tokens
        self._close(found[first], generated[first])

    def test_listed_tokens_are_sorted_and_leave_a_consistent_tail(self, generated: dict[TokenIds, Generation]) -> None:
        for generation in generated.values():
            listed = generation.listed
            assert listed is not None
            assert len(listed) == len(generation.tokens)
            assert listed.ids.shape[1] == 8
            assert np.all(np.diff(listed.logprobs, axis=1) <= 0.0)
            assert np.array_equal(listed.ids[:, 0], np.array(generation.tokens))
            total = np.exp(listed.logprobs.astype(np.float64)).sum(axis=1) + np.exp(listed.tail.astype(np.float64))
            np.testing.assert_allclose(total, 1.0, atol=1e-4)

    def test_stop_reason_and_length_agree(
        self, generated: dict[TokenIds, Generation], tokenizer: Tokenizer, reference: Session
    ) -> None:
        for generation in generated.values():
            ended = [token in tokenizer.eos_ids for token in generation.tokens]
            assert not any(ended[:-1]), "tokens follow the end of the sequence"
            assert generation.stop == ("eos" if ended[-1] else "length")
            assert len(generation.tokens) == _NEW_TOKENS or generation.stop == "eos"
        prompt = next(iter(generated))
        one = answers(reference, [Generate(prompt=prompt, max_new_tokens=1)])
        (only,) = one.values()
        assert isinstance(only, Generation)
        assert only.tokens == generated[prompt].tokens[:1]

    # Teacher forcing.

    def test_forced_scores_agree_with_the_generation(
        self, engine: Engine, reference: Session, reference_kv: KVConfig, generated: dict[TokenIds, Generation]
    ) -> None:
        self._need(engine, reference_kv, Capability.SCORE_TOKENS)
        for prompt, generation in generated.items():
            request = ScoreTokens(tokens=(*prompt, *generation.tokens), start=len(prompt), top_k=8)
            (found,) = answers(reference, [request]).values()
            assert isinstance(found, TokenScores)
            assert generation.listed is not None
            assert found.listed is not None
            tolerance = self.forced_tolerance_nats
            np.testing.assert_allclose(found.logprobs, generation.listed.logprobs[:, 0], atol=tolerance, rtol=0.0)
            np.testing.assert_allclose(found.listed.logprobs, generation.listed.logprobs, atol=tolerance, rtol=0.0)

    # Divergence.

    @pytest.mark.parametrize("protocol", ["prefill", "decode"])
    def test_the_reference_does_not_diverge_from_itself(
        self,
        engine: Engine,
        reference: Session,
        reference_kv: KVConfig,
        windows: tuple[Window, ...],
        protocol: Protocol,
    ) -> None:
        self._need(engine, reference_kv, _NEEDED[protocol])
        found = self._compare(reference, reference, windows, protocol)
        assert np.all(np.abs(found.kl) <= self.self_kl_nats)
        assert np.all(np.abs(found.token_nll_delta) <= max(self.self_kl_nats, self.batch_tolerance_nats))
        assert found.reference_finite.all()

    @pytest.mark.parametrize("protocol", ["prefill", "decode"])
    def test_a_lossy_cache_diverges(
        self,
        engine: Engine,
        reference: Session,
        lossy: Session,
        lossy_kv: KVConfig,
        windows: tuple[Window, ...],
        protocol: Protocol,
    ) -> None:
        self._need(engine, lossy_kv, _NEEDED[protocol])
        found = self._compare(reference, lossy, windows, protocol)
        assert np.isfinite(found.kl).all()
        assert found.kl.mean() > 0.0
        assert found.kl.min() > -1e-5
        counts = [int(np.sum(found.window == index)) for index in range(len(windows))]
        assert counts == [window.positions for window in windows]
        assert np.all((found.reference_margin >= 0.0) & (found.reference_margin <= 1.0))

    def test_a_kept_base_is_the_one_written_in_decode_protocol(
        self,
        engine: Engine,
        reference: Session,
        lossy: Session,
        lossy_kv: KVConfig,
        generated: dict[TokenIds, Generation],
    ) -> None:
        self._need(engine, lossy_kv, Capability.KEEP_BASE)
        self._need(engine, lossy_kv, Capability.KL_DECODE)
        prompt = next(iter(generated))
        (kept,) = answers(
            reference, [Generate(prompt=prompt, max_new_tokens=_NEW_TOKENS, top_k=8, keep_base=True)]
        ).values()
        assert isinstance(kept, Generation)
        assert kept.base is not None
        assert kept.tokens == generated[prompt].tokens
        windows = (Window(tokens=(*prompt, *kept.tokens), start=len(prompt)),)
        (own,) = answers(reference, [CompareBase(windows=windows, protocol="decode", base=kept.base)]).values()
        assert isinstance(own, Divergence)
        assert np.all(np.abs(own.kl) <= max(self.self_kl_nats, self.batch_tolerance_nats))
        (found,) = answers(lossy, [CompareBase(windows=windows, protocol="decode", base=kept.base)]).values()
        written = self._compare(reference, lossy, windows, "decode")
        assert isinstance(found, Divergence)
        tolerance = max(self.forced_tolerance_nats, self.batch_tolerance_nats)
        np.testing.assert_allclose(found.kl, written.kl, atol=tolerance, rtol=1e-3)

    # Refusals.

    def test_a_token_outside_the_vocabulary_is_no_crash(
        self, reference: Session, tokenizer: Tokenizer, generated: dict[TokenIds, Generation]
    ) -> None:
        prompt = next(iter(generated))
        for wrong in (tokenizer.vocab_size + 1_000_000, -1):
            request = Generate(prompt=(*prompt, wrong), max_new_tokens=2)
            try:
                found = answers(reference, [request])
            except EngineError:
                continue
            assert isinstance(found[request], Failure)
        assert self._generate(reference, (prompt,), salt="after a wrong one")[prompt].tokens == generated[prompt].tokens

    def test_no_request_is_no_work(self, reference: Session) -> None:
        assert answers(reference, []) == {}

    def _generate(self, session: Session, prompts: Sequence[TokenIds], *, salt: str) -> dict[TokenIds, Generation]:
        requests = [Generate(prompt=prompt, max_new_tokens=_NEW_TOKENS, top_k=8, salt=salt) for prompt in prompts]
        found = answers(session, requests)
        return {request.prompt: cast(Generation, found[request]) for request in requests}

    def _close(self, own: Generation, other: Generation) -> None:
        assert own.listed is not None
        assert other.listed is not None
        difference = np.abs(own.listed.logprobs - other.listed.logprobs)
        assert float(difference.max(initial=0.0)) <= self.batch_tolerance_nats

    def _compare(
        self, reference: Session, candidate: Session, windows: tuple[Window, ...], protocol: Protocol
    ) -> Divergence:
        (base,) = answers(reference, [WriteBase(windows=windows, protocol=protocol)]).values()
        assert isinstance(base, Base)
        request = CompareBase(windows=windows, protocol=protocol, base=base.blob)
        found = answers(candidate, [request])[request]
        assert isinstance(found, Divergence)
        return found

    def _need(self, engine: Engine, kv: KVConfig, capability: Capability) -> None:
        if capability not in engine.capabilities(kv):
            pytest.skip(f"{engine.name} has no {capability.value}")


_NEEDED = {"prefill": Capability.KL_PREFILL, "decode": Capability.KL_DECODE}
