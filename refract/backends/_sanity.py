"""Whether an engine computes the model at all: one that stores what it cannot read back guesses worse than chance."""

from __future__ import annotations

from math import log

import numpy as np

from refract.engine import Tokenizer
from refract.errors import EngineError
from refract.work import Floats, Window

_TEXT = "The capital of France is Paris, the capital of Spain is Madrid, and the capital of Italy is Rome."
_SCORED = 12  # tokens at its end, which any language model expects


def sanity_window(tokenizer: Tokenizer) -> Window:
    """A sentence whose end any language model can guess."""
    tokens = tokenizer.encode(_TEXT, add_special=True)
    return Window(tokens=tokens, start=max(1, len(tokens) - _SCORED))


def refuse_garbage(logprobs: Floats, vocab_size: int, engine: str, kv: str) -> None:
    """Nothing, when the scored tokens of `sanity_window` are more probable than by chance.

    `logprobs` (N,) are theirs in nats. The worst format measured so far leaves a model far better than a uniform guess
    over its vocabulary; an engine whose kernels misread the cache was seen at 1.5 times the vocabulary in perplexity.

    Raises: EngineError where they are not, or are not finite.
    """
    mean = float(np.mean(-logprobs.astype(np.float64)))
    if not mean < log(vocab_size):
        raise EngineError(
            f"{engine} returned garbage under {kv}: it expects a plain sentence with {mean:.1f} nats a token, a guess"
            f" with {log(vocab_size):.1f}",
            hint="this engine does not carry out this KV type on this device, though it reports no error: use another",
        )
