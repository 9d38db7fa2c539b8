"""Whether an engine computes the model at all: one that stores what it cannot read back guesses worse than chance."""

from __future__ import annotations

from dataclasses import replace
from math import log

import numpy as np

from refract.engine import LoadSpec, Tokenizer
from refract.errors import EngineError
from refract.work import Floats, Window

_TEXT = "The capital of France is Paris, the capital of Spain is Madrid, and the capital of Italy is Rome."
_SCORED = 12  # tokens at its end, which any language model expects
_OF_A_GUESS = 0.5  # of the nats of a uniform guess


def sanity_window(tokenizer: Tokenizer) -> Window:
    """A sentence whose end any language model can guess."""
    tokens = tokenizer.encode(_TEXT, add_special=True)
    return Window(tokens=tokens, start=max(1, len(tokens) - _SCORED))


def with_room(spec: LoadSpec, tokenizer: Tokenizer) -> LoadSpec:
    """`spec` for sequences at least as long as that sentence, so that it can always be asked."""
    return replace(spec, max_tokens=max(spec.max_tokens, len(sanity_window(tokenizer).tokens)))


def refuse_garbage(logprobs: Floats, vocab_size: int, engine: str, kv: str) -> None:
    """Nothing, when the scored tokens of `sanity_window` are much more probable than by chance.

    `logprobs` (N,) are theirs in nats. The limit is half of what a guess over the vocabulary costs, 5.4 nats for 49,152
    tokens: SmolLM2 expects them with .6 nats, under vLLM's e5m2 with .9, and under types that vLLM takes on processors
    and does not compute with 7.5 (float16), 8.4 (int8) and 10.7 (turboquant_k8v4).

    Raises: EngineError where they are not, or are not finite.
    """
    mean, limit = float(np.mean(-logprobs.astype(np.float64))), _OF_A_GUESS * log(vocab_size)
    if not mean < limit:
        raise EngineError(
            f"{engine} returned garbage under {kv}: it expects a plain sentence with {mean:.1f} nats a token, where"
            f" {limit:.1f} is far too many",
            hint="this engine does not carry out this KV type on this device, though it reports no error: use another",
        )
