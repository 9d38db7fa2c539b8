"""Messages between the parent and the process that runs vLLM: a JSON object and arrays, over a socket.

Layout: 8 bytes little-endian length of the JSON text, the text, then the arrays' bytes in order. The text's "arrays"
holds each one's dtype and shape.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
PROTOCOL = 1  # raised whenever one end would misunderstand the other
LONGEST_TEXT = 1 << 28  # bytes; more is no message but noise


class WireError(Exception):
    """What arrived is no message."""


def packed(head: dict[str, Any], arrays: Sequence[Array] = ()) -> list[bytes | memoryview]:
    """The pieces of a message, in order."""
    solid = [np.ascontiguousarray(array) for array in arrays]
    whole = head | {"arrays": [[array.dtype.str, list(array.shape)] for array in solid]}
    text = json.dumps(whole).encode()
    return [len(text).to_bytes(8, "little") + text, *(array.data.cast("B") for array in solid if array.size)]


def unpacked(read: Callable[[int], bytearray]) -> tuple[dict[str, Any], list[Array]]:
    """The next message of a stream, from which `read` takes exactly so many bytes.

    Raises: WireError for what is no message.
    """
    size = int.from_bytes(read(8), "little")
    if not 0 < size <= LONGEST_TEXT:
        raise WireError(f"a message of {size} bytes")
    try:
        head = json.loads(read(size))
        shapes = [(np.dtype(dtype), tuple(int(n) for n in shape)) for dtype, shape in head.pop("arrays")]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise WireError(f"{type(error).__name__} in a message of {size} bytes") from None
    arrays = []
    for dtype, shape in shapes:
        count = int(np.prod(shape))
        data = read(count * dtype.itemsize) if count else bytearray()
        arrays.append(np.frombuffer(data, dtype).reshape(shape))
    return head, arrays
