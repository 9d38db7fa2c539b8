"""A small tokenizer, contexts and hand-made answers for the tests of axes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from refract.axes.base import Answers, AxisPlan, PlanContext
from refract.data.corpus import Corpus, Section
from refract.data.prompts import Prompt, PromptSet
from refract.engine import Capability
from refract.work import (
    Answer,
    Base,
    BlobRef,
    CompareBase,
    Distributions,
    Divergence,
    Failure,
    Generate,
    Generation,
    Message,
    Request,
    ScoreTokens,
    TokenIds,
    TokenScores,
    WriteBase,
)

BOS, EOS, USER, ASSISTANT = 0, 1, 2, 3
_SPECIAL = {BOS: "<s>", EOS: "</s>", USER: "<user>", ASSISTANT: "<assistant>"}
_BYTES = 4  # ids 4 … 259 are single bytes
_WORDS = 260
_PIECE = re.compile(r" ?[A-Za-z]{1,4}|[\s\S]")
EVERYTHING = frozenset(Capability)


class SmallTokenizer:
    """ASCII words in pieces of four letters, everything else in UTF-8 bytes; grows its vocabulary as it reads."""

    def __init__(self, *, bos: bool = True, chat: bool = True, thinks: bool = False) -> None:
        self.bos, self.has_chat_template, self.thinks = bos, chat, thinks
        self._ids: dict[str, int] = {}
        self._pieces: list[str] = []
        self.encoded_chars = 0

    @property
    def vocab_size(self) -> int:
        return _WORDS + len(self._pieces)

    @property
    def eos_ids(self) -> frozenset[int]:
        return frozenset({EOS})

    def encode(self, text: str, *, add_special: bool = False) -> TokenIds:
        self.encoded_chars += len(text)
        ids: list[int] = [BOS] if add_special and self.bos else []
        for piece in _PIECE.findall(text):
            if len(piece) > 1 or (piece.isalpha() and piece.isascii()):
                ids.append(self._id(piece))
            else:
                ids.extend(_BYTES + byte for byte in piece.encode())
        return tuple(ids)

    def _id(self, piece: str) -> int:
        if piece not in self._ids:
            self._ids[piece] = _WORDS + len(self._pieces)
            self._pieces.append(piece)
        return self._ids[piece]

    def decode(self, ids: Sequence[int]) -> str:
        raw = b"".join(self._bytes(i) for i in ids)
        return raw.decode("utf-8", errors="replace")

    def _bytes(self, token: int) -> bytes:
        if token in _SPECIAL:
            return _SPECIAL[token].encode()
        return bytes([token - _BYTES]) if token < _WORDS else self._pieces[token - _WORDS].encode()

    def render(self, messages: Sequence[Message]) -> TokenIds:
        start = (BOS,) if self.bos else ()
        if not self.has_chat_template:
            return (*start, *self.encode("\n\n".join(m.content for m in messages)))
        body = [i for m in messages for i in (USER, *self.encode(m.content))]
        return (*start, *body, ASSISTANT, *(self.encode("<think>\n") if self.thinks else ()))


def prompt_set(*texts: str, categories: Sequence[str] = ("qa", "code")) -> PromptSet:
    """One user message a prompt, ids p0, p1, …, the categories taking turns."""
    prompts = tuple(
        Prompt(
            id=f"p{i}",
            category=categories[i % len(categories)],
            tier="default",
            messages=(Message(role="user", content=text),),
        )
        for i, text in enumerate(texts)
    )
    return PromptSet(name="test", sha256="0" * 64, prompts=prompts)


def corpus(**sections: str) -> Corpus:
    """A corpus of the named sections."""
    parts: list[Section] = []
    start = 0
    for name, text in sections.items():
        parts.append(Section(category=name, start=start, end=start + len(text)))
        start += len(text)
    return Corpus(name="test-corpus", sha256="1" * 64, text="".join(sections.values()), sections=tuple(parts))


@lru_cache
def prose(words: int, *, seed: int = 0) -> str:
    """Words without repetition worth the name, in lines of ten with full stops."""
    rng = np.random.default_rng(seed)
    ends = np.cumsum(rng.integers(2, 9, words))
    letters = (rng.integers(0, 26, ends[-1], dtype=np.uint8) + ord("a")).tobytes().decode()
    made = [letters[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    return "".join(word + (".\n" if i % 10 == 9 else " ") for i, word in enumerate(made))


TWENTY = tuple(f"Please explain topic number {i}, and give one short example of it." for i in range(20))


def context(
    *,
    tokenizer: SmallTokenizer | None = None,
    prompts: PromptSet | None = None,
    text: Corpus | None = None,
    n_predict: int = 16,
    context_length: int = 4096,
    capabilities: frozenset[Capability] = EVERYTHING,
    seed: int = 0,
) -> PlanContext:
    return PlanContext(
        tokenizer=tokenizer or SmallTokenizer(),
        prompts=prompts or prompt_set(*TWENTY),
        corpus=text or corpus(one=prose(4000, seed=1), two=prose(4000, seed=2)),
        n_predict=n_predict,
        context_length=context_length,
        capabilities=capabilities,
        seed=seed,
    )


def generation(*tokens: int, stop: str = "length", margins: Sequence[float] | None = None) -> Generation:
    """Tokens, with a listing whose top-1 minus top-2 probability is `margins` (…, one a token)."""
    listed = None
    if margins is not None:
        top = [(0.8 + m) / 2.0 for m in margins]
        pairs = [[t, t - m] for t, m in zip(top, margins, strict=True)]
        listed = Distributions(
            ids=np.array([[t, 9999] for t in tokens], dtype=np.int32),
            logprobs=np.log(np.array(pairs, dtype=np.float64)).astype(np.float32),
            tail=np.full(len(tokens), math.log(0.2), dtype=np.float32),
        )
    return Generation(tokens=tokens, stop="eos" if stop == "eos" else "length", listed=listed)


def divergence(
    kl: Sequence[float], *, estimator: str = "kl-exact", reference_finite: bool = True, same_top: bool = True
) -> Divergence:
    n = len(kl)
    floats = np.zeros(n, dtype=np.float32)
    return Divergence(
        kl=np.array(kl, dtype=np.float32),
        same_top=np.full(n, same_top),
        reference_margin=np.full(n, 0.5, dtype=np.float32),
        token_nll_delta=floats,
        token_p_delta=floats,
        reference_nll=np.full(n, 2.0, dtype=np.float32),
        reference_finite=np.full(n, reference_finite),
        window=np.zeros(n, dtype=np.int32),
        estimator=estimator,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Answers every request by rule; a rule gets the request and its index among those of its kind."""

    generate: Callable[[Generate, int], Generation | Failure] = lambda request, _: follow(request)
    compare: Callable[[CompareBase, int], Divergence | Failure] = field(
        default=lambda request, _: divergence([0.0] * request.windows[0].positions)
    )
    score: Callable[[ScoreTokens, int], TokenScores | Failure] = field(
        default=lambda request, _: TokenScores(
            logprobs=np.full(len(request.tokens) - request.start, -1.0, dtype=np.float32)
        )
    )
    base: Callable[[WriteBase, int], Base | Failure] = field(default=lambda _, i: Base(blob=blob(f"w{i}")))

    def answer(self, requests: Sequence[Request]) -> Answers:
        counts: dict[type, int] = {}
        answers: dict[Request, Answer | Failure] = {}
        for request in requests:
            if request in answers:
                continue
            index = counts.get(type(request), 0)
            counts[type(request)] = index + 1
            answers[request] = self._one(request, index)
        return answers

    def _one(self, request: Request, index: int) -> Answer | Failure:
        match request:
            case Generate():
                made = self.generate(request, index)
                if request.keep_base and isinstance(made, Generation):
                    return Generation(tokens=made.tokens, stop=made.stop, listed=made.listed, base=blob(f"g{index}"))
                return made
            case ScoreTokens():
                return self.score(request, index)
            case WriteBase():
                return self.base(request, index)
            case CompareBase():
                return self.compare(request, index)


def blob(name: str) -> BlobRef:
    return BlobRef(sha256=name, size_bytes=1, format="test/1")


def follow(request: Generate) -> Generation:
    """Sixteen or fewer tokens that depend on the whole prompt, never a loop."""
    seed = sum((i + 1) * t for i, t in enumerate(request.prompt)) % 100_003
    rng = np.random.default_rng(seed)
    tokens = tuple(int(t) for t in rng.integers(_BYTES + 97, _BYTES + 123, request.max_new_tokens))
    return generation(*tokens, margins=[0.5] * len(tokens))


def run(plan: AxisPlan, reference: Model, candidate: Model) -> tuple[Answers, Answers]:
    """Both sides' answers, the candidate's given the reference's."""
    ours = reference.answer(plan.reference())
    return ours, candidate.answer(plan.candidate(ours))
