"""What every engine must pass, as a pytest class: subclass it, provide three fixtures, run it on a small real model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from refract.engine import Capability, Engine, LoadSpec, Session, Tokenizer
from refract.errors import EngineError, KVUnsupportedError
from refract.kv import KVConfig
from refract.testing.fixtures import NEW_TOKENS, TEXTS, ContractFixtures, answers
from refract.work import (
    CompareBase,
    Divergence,
    Failure,
    Generate,
    Generation,
    Message,
    Protocol,
    ScoreTokens,
    TokenIds,
    TokenScores,
    Window,
)


class EngineContract(ContractFixtures):
    """Subclasses provide class-scoped fixtures `engine`, `model` and `lossy_kv`, and may override the others.

    One session per configuration is loaded for all tests. The tolerances are 0 where the engine is deterministic for
    every batch; an engine whose kernels depend on the batch states how far its numbers move, in nats. Fixtures that are
    wider than a function are class methods (pytest 9).
    """

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
        assert own.max_tokens == 0 or own.digest != engine.identify(longer).digest
        assert own.model
        assert reference_spec.model not in own.model or not Path(reference_spec.model).exists()

    def test_a_control_is_another_identity_of_the_same_model(self, engine: Engine, lossy_spec: LoadSpec) -> None:
        changes = engine.control_options(lossy_spec.options, lossy_spec.kv)
        if changes is None:
            pytest.skip("the engine has no harmless change")
        own = engine.identify(lossy_spec)
        other = engine.identify(replace(lossy_spec, options={**lossy_spec.options, **changes}))
        assert changes
        assert own.digest != other.digest
        assert (own.engine, own.build, own.model, own.kv) == (other.engine, other.build, other.model, other.kv)

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
        again = self.ask(reference, prompts, salt="again")
        assert {prompt: found.tokens for prompt, found in again.items()} == {p: g.tokens for p, g in generated.items()}

    def test_an_answer_does_not_depend_on_order_or_batch_mates(
        self, reference: Session, generated: dict[TokenIds, Generation], prompts: tuple[TokenIds, ...]
    ) -> None:
        others = [self.ask(reference, prompts[::-1], salt="reversed")]
        others += [self.ask(reference, (prompt,), salt="alone") for prompt in prompts]
        for found in others:
            for prompt, generation in found.items():
                assert generation.tokens == generated[prompt].tokens
                self.check_close(generation, generated[prompt])

    def test_every_request_starts_from_an_empty_cache(
        self, reference: Session, generated: dict[TokenIds, Generation], prompts: tuple[TokenIds, ...]
    ) -> None:
        """A prompt asked after a longer one that begins with it, and after itself, is answered as if it came first."""
        first = prompts[0]
        longer = (*first, *generated[first].tokens[:4])
        found = self.ask(reference, (longer,), salt="longer")
        found |= self.ask(reference, (first,), salt="after")
        assert found[first].tokens == generated[first].tokens
        self.check_close(found[first], generated[first])

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
            assert len(generation.tokens) == NEW_TOKENS or generation.stop == "eos"
        prompt = next(iter(generated))
        one = answers(reference, [Generate(prompt=prompt, max_new_tokens=1)])
        (only,) = one.values()
        assert isinstance(only, Generation)
        assert only.tokens == generated[prompt].tokens[:1]

    def test_generation_ends_with_the_end_of_the_sequence(
        self, reference: Session, prompts: tuple[TokenIds, ...], tokenizer: Tokenizer
    ) -> None:
        found = answers(reference, [Generate(prompt=prompt, max_new_tokens=64) for prompt in prompts])
        ended = [answer for answer in found.values() if isinstance(answer, Generation) and answer.stop == "eos"]
        if not ended:
            pytest.skip("the model ended none of its answers within 64 tokens")
        for generation in ended:
            assert generation.tokens[-1] in tokenizer.eos_ids
            assert not tokenizer.eos_ids.intersection(generation.tokens[:-1])

    # Teacher forcing.

    def test_forced_scores_agree_with_the_generation(
        self, engine: Engine, reference: Session, reference_kv: KVConfig, generated: dict[TokenIds, Generation]
    ) -> None:
        self.need(engine, reference_kv, Capability.SCORE_TOKENS)
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
        self.need(engine, reference_kv, _NEEDED[protocol])
        found = self.compare(reference, reference, windows, protocol)
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
        self.need(engine, lossy_kv, _NEEDED[protocol])
        found = self.compare(reference, lossy, windows, protocol)
        assert np.isfinite(found.kl).all()
        assert found.kl.mean() > 0.0
        assert found.kl.min() > -1e-5
        counts = [int(np.sum(found.window == index)) for index in range(len(windows))]
        assert counts == [window.positions for window in windows]
        assert np.all((found.reference_margin >= 0.0) & (found.reference_margin <= 1.0))

    @pytest.mark.parametrize("protocol", ["prefill", "decode"])
    def test_a_window_does_not_depend_on_the_others(
        self,
        engine: Engine,
        reference: Session,
        lossy: Session,
        lossy_kv: KVConfig,
        windows: tuple[Window, ...],
        protocol: Protocol,
    ) -> None:
        self.need(engine, lossy_kv, _NEEDED[protocol])
        together = self.compare(reference, lossy, windows[:2], protocol)
        alone = [self.compare(reference, lossy, (window,), protocol).kl for window in windows[:2]]
        np.testing.assert_allclose(np.concatenate(alone), together.kl, atol=self.batch_tolerance_nats, rtol=0.0)

    def test_a_kept_base_is_the_one_written_in_decode_protocol(
        self,
        engine: Engine,
        reference: Session,
        lossy: Session,
        lossy_kv: KVConfig,
        generated: dict[TokenIds, Generation],
    ) -> None:
        self.need(engine, lossy_kv, Capability.KEEP_BASE)
        self.need(engine, lossy_kv, Capability.KL_DECODE)
        prompt = next(iter(generated))
        (kept,) = answers(
            reference, [Generate(prompt=prompt, max_new_tokens=NEW_TOKENS, top_k=8, keep_base=True)]
        ).values()
        assert isinstance(kept, Generation)
        assert kept.base is not None
        assert kept.tokens == generated[prompt].tokens
        windows = (Window(tokens=(*prompt, *kept.tokens), start=len(prompt)),)
        (own,) = answers(reference, [CompareBase(windows=windows, protocol="decode", base=kept.base)]).values()
        assert isinstance(own, Divergence)
        assert np.all(np.abs(own.kl) <= max(self.self_kl_nats, self.batch_tolerance_nats))
        (found,) = answers(lossy, [CompareBase(windows=windows, protocol="decode", base=kept.base)]).values()
        written = self.compare(reference, lossy, windows, "decode")
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
        assert self.ask(reference, (prompt,), salt="after a wrong one")[prompt].tokens == generated[prompt].tokens

    def test_no_request_is_no_work(self, reference: Session) -> None:
        assert answers(reference, []) == {}


_NEEDED = {"prefill": Capability.KL_PREFILL, "decode": Capability.KL_DECODE}
