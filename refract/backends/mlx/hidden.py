"""KL bases as final hidden states: a few KB a position, exact, and turned into logits when they are compared."""

from __future__ import annotations

import io
from collections.abc import Sequence
from concurrent.futures import Executor

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from refract.backends._logits import compare_logits, join
from refract.backends.mlx.lanes import Work
from refract.backends.mlx.model import SplitModel
from refract.engine import Blobs
from refract.errors import StoreError
from refract.work import BlobRef, Divergence

FORMAT = "mlx-hidden/1"  # one .npy array (positions, width), float32
Hidden = npt.NDArray[np.float32]
_ROWS = 64  # positions turned into logits at once, on both sides alike


def to_numpy(array: mx.array) -> Hidden:
    """The array's values as float32 in numpy's memory."""
    return np.array(array.astype(mx.float32))


def write_base(blobs: Blobs, hidden: Sequence[Hidden]) -> BlobRef:
    """The base that keeps `hidden`, arrays (n, width) of consecutive windows."""
    buffer = io.BytesIO()
    np.save(buffer, np.concatenate(hidden).astype(np.float32), allow_pickle=False)
    return blobs.put(buffer.getvalue(), format=FORMAT)


def read_base(blobs: Blobs, ref: BlobRef) -> Hidden:
    """The hidden states of a base. Raises: StoreError when it is of another format or damaged."""
    if ref.format != FORMAT:
        raise StoreError(f"a KL base has format {ref.format}, expected {FORMAT}", hint="run again with --no-cache")
    array: Hidden = np.load(blobs.path(ref), allow_pickle=False)
    return array


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
