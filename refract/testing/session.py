"""A session of the fake engine: every kind of request answered from `FakeModel`'s logits."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from refract.engine import Blobs
from refract.stats.divergence import kl_terms, kl_topk, log_softmax
from refract.testing.behaviour import Behaviour, Rewrite
from refract.testing.faults import Fault
from refract.testing.model import F64, FakeModel, absorb
from refract.testing.tokenizer import EOS, VOCAB_SIZE
from refract.work import (
    Answer,
    Base,
    BlobRef,
    CompareBase,
    Distributions,
    Divergence,
    EffectiveKV,
    Failure,
    Floats,
    Generate,
    Generation,
    Request,
    ScoreTokens,
    TokenIds,
    TokenScores,
    Window,
    WriteBase,
)

BASE_FORMAT = "fake-logprobs/1"


class FakeSession:
    """Answers from `model`, broken by `behaviour` if there is one; fulfils `refract.engine.Session`."""

    def __init__(
        self,
        *,
        model: FakeModel,
        effective: EffectiveKV,
        max_tokens: int,
        blobs: Blobs,
        behaviour: Behaviour | Rewrite | None,
        fault: Fault | None,
        estimator_top_k: int,
        answered: Callable[[Request], None],
    ) -> None:
        self.model, self.effective_kv, self.max_tokens, self.blobs = model, effective, max_tokens, blobs
        self.behaviour, self.fault, self.estimator_top_k = behaviour, fault, estimator_top_k
        self._answered = answered

    def run(self, requests: Sequence[Request]) -> Iterator[tuple[Request, Answer | Failure]]:
        """Answers every request, last one first: nobody may rely on their order."""
        for request in reversed(requests):
            if self.fault is not None:
                self.fault.count()
            answer = self._refusal(request) or self._answer(request)
            if self.behaviour is not None and not isinstance(self.behaviour, Behaviour):
                answer = self.behaviour(request, answer)
            self._answered(request)
            yield request, answer

    def _answer(self, request: Request) -> Answer:
        if isinstance(request, Generate):
            return self._generate(request)
        if isinstance(request, ScoreTokens):
            window = Window(tokens=request.tokens, start=request.start)
            logprobs = log_softmax(self._logits(window))
            return TokenScores(logprobs=_own(logprobs, window), listed=_listed(logprobs, request.top_k))
        if isinstance(request, WriteBase):
            return Base(blob=self._keep([log_softmax(self._logits(window)) for window in request.windows]))
        return self._compare(request)

    def _refusal(self, request: Request) -> Failure | None:
        texts = [window.tokens for window in request.windows] if isinstance(request, WriteBase | CompareBase) else []
        longest = max(map(len, texts), default=0)
        if isinstance(request, Generate):
            texts, longest = [request.prompt], len(request.prompt) + request.max_new_tokens
        elif isinstance(request, ScoreTokens):
            texts, longest = [request.tokens], len(request.tokens)
        if any(not 0 <= token < VOCAB_SIZE for text in texts for token in text):
            return Failure(kind="bad-token", message=f"a token id outside 0 … {VOCAB_SIZE - 1}")
        if longest > self.max_tokens:
            return Failure(kind="too-long", message=f"{longest} tokens, loaded for {self.max_tokens}")
        return None

    def _logits(self, window: Window) -> F64:
        """Logits (positions, V) of a window, whose tokens before `start` are its prompt."""
        prompt, continuation = window.tokens[: window.start], window.tokens[window.start :]
        contexts = [self.model.initial(), *absorb(self.model.initial(), window.tokens[:-1])]
        logits = self.model.logits(contexts[window.start :])
        return self._finished(logits, prompt, continuation, first=0)

    def _finished(self, logits: F64, prompt: TokenIds, continuation: TokenIds, *, first: int) -> F64:
        logits = self.model.with_response(logits, prompt, continuation, first)
        return self.behaviour.change(logits, continuation, first) if isinstance(self.behaviour, Behaviour) else logits

    def _generate(self, request: Generate) -> Generation:
        tokens: list[int] = []
        steps: list[F64] = []
        *_, context = self.model.initial(), *absorb(self.model.initial(), request.prompt)
        while len(tokens) < request.max_new_tokens and (not tokens or tokens[-1] != EOS):
            raw = self.model.logits([context])
            steps.append(log_softmax(self._finished(raw, request.prompt, tuple(tokens), first=len(tokens))))
            tokens.append(int(np.argmax(steps[-1])))
            (context,) = absorb(context, tokens[-1:])
        logprobs = np.concatenate(steps) if steps else np.zeros((0, VOCAB_SIZE))
        return Generation(
            tokens=tuple(tokens),
            stop="eos" if tokens and tokens[-1] == EOS else "length",
            listed=_listed(logprobs, request.top_k),
            base=self._keep([logprobs]) if request.keep_base else None,
        )

    def _keep(self, logprobs: Sequence[F64]) -> BlobRef:
        data = io.BytesIO()
        np.lib.format.write_array(data, np.concatenate(logprobs).astype(np.float32), allow_pickle=False)
        return self.blobs.put(data.getvalue(), format=BASE_FORMAT)

    def _compare(self, request: CompareBase) -> Divergence:
        with self.blobs.path(request.base).open("rb") as stream:
            reference = np.lib.format.read_array(stream, allow_pickle=False).astype(np.float64)
        own = [log_softmax(self._logits(window)).astype(np.float32).astype(np.float64) for window in request.windows]
        texts = np.concatenate([window.tokens[window.start :] for window in request.windows])
        return _divergence(
            reference,
            np.concatenate(own),
            texts,
            [window.positions for window in request.windows],
            self.estimator_top_k,
        )


def _divergence(reference: F64, candidate: F64, text: F64, positions: Sequence[int], top_k: int) -> Divergence:
    rows, tokens = np.arange(len(reference)), text.astype(np.int64)
    own, other = reference[rows, tokens], candidate[rows, tokens]
    top = np.sort(np.exp(reference), axis=-1)[:, -2:]
    return Divergence(
        kl=_f32(_listed_kl(reference, candidate, top_k) if top_k else kl_terms(reference, candidate)),
        same_top=np.argmax(reference, axis=-1) == np.argmax(candidate, axis=-1),
        reference_margin=_f32(top[:, 1] - top[:, 0]),
        token_nll_delta=_f32(own - other),
        token_p_delta=_f32(np.exp(other) - np.exp(own)),
        reference_nll=_f32(-own),
        reference_finite=np.asarray(np.isfinite(reference).all(axis=-1)),
        window=np.repeat(np.arange(len(positions), dtype=np.int32), positions),
        estimator=f"kl-top{top_k}" if top_k else "kl-exact",
    )


def _listed_kl(reference: F64, candidate: F64, top_k: int) -> F64:
    listed = _listed(reference, top_k)
    assert listed is not None
    chosen = np.take_along_axis(candidate, listed.ids.astype(np.int64), axis=-1)
    return np.asarray(kl_topk(listed, chosen, _rest(candidate, listed.ids)), dtype=np.float64)


def _listed(logprobs: F64, top_k: int) -> Distributions | None:
    if not top_k:
        return None
    ids = np.argsort(-logprobs, axis=-1, kind="stable")[:, :top_k].astype(np.int32)
    chosen = np.take_along_axis(logprobs, ids.astype(np.int64), axis=-1)
    return Distributions(ids=ids, logprobs=_f32(chosen), tail=_f32(_rest(logprobs, ids)))


def _rest(logprobs: F64, ids: np.ndarray[tuple[int, ...], np.dtype[np.int32]]) -> F64:
    """Log of the mass (N,) outside `ids` (N, K)."""
    mass = np.exp(logprobs)
    np.put_along_axis(mass, ids.astype(np.int64), 0.0, axis=-1)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(mass.sum(axis=-1)))


def _own(logprobs: F64, window: Window) -> Floats:
    tokens = np.array(window.tokens[window.start :], dtype=np.int64)
    return _f32(np.take_along_axis(logprobs, tokens[:, None], axis=-1)[:, 0])


def _f32(values: F64) -> Floats:
    return np.asarray(values, dtype=np.float32)
