"""What broken caches, servers and adapters do to answers, as functions that rewrite them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from fooled.bench import KNOWS, NEEDLES, PROMPTS
from refract.testing import FakeTokenizer
from refract.testing.behaviour import Rewrite
from refract.testing.tokenizer import EOS
from refract.work import (
    Answer,
    CompareBase,
    Distributions,
    Divergence,
    Failure,
    Generate,
    Generation,
    Request,
    TokenIds,
)

Speak = Callable[[Generate, Generation], Sequence[int]]
Measure = Callable[[CompareBase, Divergence], Divergence | Failure]
JUNK = b"The quick brown fox jumps over the lazy dog. "


def generating(speak: Speak) -> Rewrite:
    """A candidate that says something else; a text that ends in EOS has stopped by itself."""

    def rewrite(request: Request, answer: Answer | Failure) -> Answer | Failure:
        if not isinstance(request, Generate) or not isinstance(answer, Generation):
            return answer
        tokens = tuple(speak(request, answer))[: request.max_new_tokens]
        return said(tokens, answer)

    return rewrite


def said(tokens: TokenIds, answer: Generation) -> Generation:
    """A generation of `tokens`, listed as if each had been the most probable by far."""
    rows = len(tokens)
    listed = answer.listed and Distributions(
        ids=np.array([[token, (token + 1) % 256] for token in tokens], dtype=np.int32).reshape(rows, 2),
        logprobs=np.tile(np.array([-0.1, -3.0], dtype=np.float32), (rows, 1)),
        tail=np.full(rows, -3.1, dtype=np.float32),
    )
    stop = "eos" if tokens and tokens[-1] == EOS else "length"
    return replace(answer, tokens=tokens, stop=stop, listed=listed)


def measuring(measure: Measure) -> Rewrite:
    """A candidate whose divergences are others."""

    def rewrite(request: Request, answer: Answer | Failure) -> Answer | Failure:
        return (
            measure(request, answer) if isinstance(request, CompareBase) and isinstance(answer, Divergence) else answer
        )

    return rewrite


def both(*rewrites: Rewrite) -> Rewrite:
    """One breakage after the other."""

    def rewrite(request: Request, answer: Answer | Failure) -> Answer | Failure:
        for one in rewrites:
            answer = one(request, answer)
        return answer

    return rewrite


def body(answer: Generation) -> TokenIds:
    """What was said, without the end."""
    return answer.tokens[:-1] if answer.stop == "eos" else answer.tokens


# Generations.


def stops_after(count: int, *, quietly: bool = False) -> Rewrite:
    """Right up to `count` tokens, then over; `quietly` without an end-of-sequence token."""
    end = () if quietly else (EOS,)
    return generating(lambda _, answer: (*body(answer)[:count], *end))


def silent_but_for(request_index: int, *, ended: bool) -> Rewrite:
    """Nothing, but for one prompt."""
    spared = prompts()[request_index]

    def speak(request: Generate, answer: Generation) -> Sequence[int]:
        return answer.tokens if request.prompt == spared else (EOS,) * ended

    return generating(speak)


def prompts() -> list[TokenIds]:
    """The rendered prompts."""
    tokenizer = FakeTokenizer()
    return [tokenizer.render(prompt.messages) for prompt in PROMPTS.prompts]


def number_of(request: Generate) -> int:
    """A number that depends on the whole prompt."""
    return sum((place + 1) * token for place, token in enumerate(request.prompt))


def subject_number(request: Generate) -> int:
    """A number that changes from prompt to prompt and hardly ever with the wording."""
    return len(KNOWS(request.prompt) or ())


constant_junk = generating(lambda request, _: (JUNK * 4)[: request.max_new_tokens])
junk_with_a_counter = generating(lambda request, _: (*JUNK[:40], 97 + number_of(request) % 26, EOS))
two_texts = generating(
    lambda request, _: (b"Yes, of course." * 2, b"No, by no means." * 2)[subject_number(request) % 2]
)
echoes = generating(lambda request, _: request.prompt[2:-2])
runs_away = generating(lambda request, answer: (body(answer) + tuple(JUNK * 4))[: request.max_new_tokens])
loops = generating(lambda request, answer: (*body(answer)[:3], *b"so " * 40)[: request.max_new_tokens])
breaks_characters = generating(lambda _, answer: (*body(answer)[:-1], 0xC3, 0x28, EOS))
forgets_needles = generating(lambda request, answer: b"I do not know." if request.prompt in NEEDLES else answer.tokens)
thinks_for_ever = generating(
    lambda request, answer: b"<think>Let me see. Hm. Let me see." if request.prompt in NEEDLES else answer.tokens
)


def forgets_beyond(tokens: int) -> Rewrite:
    """No needle is found in prompts longer than that."""
    return generating(lambda request, answer: b"I do not know." if len(request.prompt) > tokens else answer.tokens)


def _mixed_up() -> Rewrite:
    """Every answer is another prompt's, as when the rows of a batch are confused."""
    asked = [*prompts(), *NEEDLES]
    others = dict(zip(asked, [*asked[1:], asked[0]], strict=True))
    return generating(
        lambda request, answer: KNOWS(others[request.prompt]) or () if request.prompt in others else answer.tokens
    )


mixed_up_rows = _mixed_up()


def stale_answers() -> Rewrite:
    """A changed prompt is answered as the unchanged one: a prefix cache that ignores the end of what it is asked."""

    def speak(request: Generate, answer: Generation) -> Sequence[int]:
        words = bytes(request.prompt[2:-2]).decode("utf-8", "replace").split()
        own = [p for p in prompts() if len(words) > 2 and words[2].encode() in bytes(p[2:-2])]
        return KNOWS(own[0]) or () if own and request.prompt not in NEEDLES else answer.tokens

    return generating(speak)


def jumpy(request: Generate, answer: Generation) -> Sequence[int]:
    """Any change of the prompt gives another text altogether."""
    if request.prompt in prompts() or request.prompt in NEEDLES:
        return answer.tokens
    return [97 + (number_of(request) * (place + 3) ** 2 // 7) % 26 for place in range(len(answer.tokens))]


def cancelling(request: Generate, answer: Generation) -> Sequence[int]:
    """Far too sensitive to some changes and not at all to others, so that the mean excess is near 0."""
    if request.prompt in prompts() or request.prompt in NEEDLES:
        return answer.tokens
    text = bytes(request.prompt[2:-2]).decode("utf-8", "replace")
    if "  " in text or (not text.endswith(".") and number_of(request) % 3):
        return jumpy(request, answer)
    subject = text.split()[2].encode()
    own = next((p for p in prompts() if subject in bytes(p[2:-2])), None)
    return KNOWS(own) or () if own else answer.tokens


# Divergences.


def _same(answer: Divergence, **changes: object) -> Divergence:
    return replace(answer, **changes)  # type: ignore[arg-type]


def zeroed(answer: Divergence) -> Divergence:
    """What an untouched cache gives."""
    zeros = np.zeros_like(answer.kl)
    return _same(answer, kl=zeros, token_nll_delta=zeros, token_p_delta=zeros, same_top=np.ones(len(zeros), np.bool_))


def constant(answer: Divergence, kl: float, *, delta: float = 0.0, same_top: bool = False) -> Divergence:
    """The same divergence at every position."""
    shape = np.ones_like(answer.kl)
    return _same(
        answer,
        kl=shape * np.float32(kl),
        token_nll_delta=shape * np.float32(delta),
        same_top=np.full(len(answer), same_top),
    )


def blind(protocol: str) -> Rewrite:
    """One protocol reads the raw keys, the other is far off."""
    return measuring(
        lambda request, answer: zeroed(answer) if request.protocol == protocol else constant(answer, 0.8, delta=0.8)
    )


def nearly_blind(protocol: str) -> Rewrite:
    """The same with rounding left over."""

    def measure(request: CompareBase, answer: Divergence) -> Divergence:
        if request.protocol != protocol:
            return constant(answer, 0.8, delta=0.8)
        return _same(answer, kl=np.abs(answer.kl) * np.float32(1e-6) + np.float32(1e-9))

    return measuring(measure)


def uncompressed_before(depth: int) -> Rewrite:
    """Nothing happens to windows that begin to be scored before that many tokens."""
    return measuring(
        lambda request, answer: (
            zeroed(answer)
            if request.protocol == "prefill" and request.windows[0].start < depth
            else constant(answer, 0.8, delta=0.8)
        )
    )


def not_finite(share: float, value: float) -> Rewrite:
    """`value` at that share of the positions."""

    def measure(request: CompareBase, answer: Divergence) -> Divergence:
        kl = answer.kl.copy()
        kl[: math.ceil(share * len(kl))] = value
        return _same(answer, kl=kl)

    return measuring(measure)


def drop_not_finite(request: CompareBase, answer: Divergence) -> Divergence:
    """An adapter that leaves out the positions it does not like."""
    keep = slice(0, max(1, len(answer) // 100))
    names = ("kl", "same_top", "reference_margin", "token_nll_delta", "token_p_delta", "reference_nll", "window")
    kept = {name: getattr(answer, name)[keep] for name in (*names, "reference_finite")}
    return _same(answer, **kept)


def failing_where_bad(request: CompareBase, answer: Divergence) -> Divergence | Failure:
    """Every fourth window is not answered."""
    number = sum(request.windows[0].tokens)
    return Failure(kind="timeout", message="no answer in 60 s") if number % 4 == 0 else answer


negative = measuring(lambda request, answer: constant(answer, -0.7, same_top=True))
flattering = measuring(lambda request, answer: constant(answer, 1.1, delta=-0.5))
cosine = measuring(lambda request, answer: constant(answer, 13.5, delta=13.0, same_top=True))
