"""KL bases as final hidden states: a few KB a position, exact, and turned into logits when they are compared."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from refract.engine import Blobs
from refract.errors import StoreError
from refract.work import BlobRef

Hidden = npt.NDArray[np.float32]


def write_base(blobs: Blobs, layout: str, hidden: Sequence[Hidden]) -> BlobRef:
    """The base that keeps `hidden`, arrays (n, width) of consecutive windows, as one .npy array.

    `layout` names the engine and version, since another engine's output head makes other logits of the same states.
    """
    buffer = io.BytesIO()
    np.save(buffer, np.concatenate(hidden).astype(np.float32), allow_pickle=False)
    return blobs.put(buffer.getvalue(), format=layout)


def read_base(blobs: Blobs, layout: str, ref: BlobRef) -> Hidden:
    """The hidden states (positions, width) of a base. Raises: StoreError when it is of another layout or damaged."""
    if ref.format != layout:
        raise StoreError(f"a KL base has format {ref.format}, expected {layout}", hint="run again with --no-cache")
    array: Hidden = np.load(blobs.path(ref), allow_pickle=False)
    return array
