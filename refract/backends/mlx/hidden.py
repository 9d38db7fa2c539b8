"""Final hidden states turned into logits, and what two of them differ in: exact over the whole vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor

import mlx.core as mx
import numpy as np

from refract.backends._hidden import Hidden
from refract.backends._logits import compare_logits, join
from refract.backends.mlx.lanes import Work
from refract.backends.mlx.model import SplitModel
from refract.work import Divergence

FORMAT = "mlx-hidden/1"  # as `_hidden` lays it out
_ROWS = 64  # positions turned into logits at once, on both sides alike


def to_numpy(array: mx.array) -> Hidden:
    """The array's values as float32 in numpy's memory."""
    return np.array(array.astype(mx.float32))


def _logits(model: SplitModel, hidden: Hidden, dtype: mx.Dtype) -> mx.array:
    """Logits (_ROWS, V) of up to as many hidden states: one shape, so that both sides run the same kernels."""
    padded = np.zeros((_ROWS, hidden.shape[1]), np.float32)
    padded[: len(hidden)] = hidden
    return model.head(mx.array(padded).astype(dtype)[None])[0]


def compare_hidden(
    model: SplitModel,
    reference: Hidden,
    candidate: Hidden,
    tokens: Sequence[int],
    dtype: mx.Dtype,
    *,
    window: int,
    pool: Executor,
) -> Work[Divergence]:
    """The divergence at every position of a window, exact over the whole vocabulary.

    Logits are made on the lane; their comparison runs in `pool` while the lane makes the next.
    """
    parts = []
    for start in range(0, len(tokens), _ROWS):
        rows = slice(start, start + _ROWS)
        count = len(tokens[rows])
        sides = [_logits(model, side[rows], dtype) for side in (reference, candidate)]
        yield sides
        ours, theirs = (to_numpy(side)[:count] for side in sides)
        parts.append(pool.submit(compare_logits, ours, theirs, tokens[rows], window=window))
    return join([part.result() for part in parts])
