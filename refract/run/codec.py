"""Answers as bytes and back: a JSON header that names every field, then the arrays' raw numbers. Nothing is pickled.

Layout, version 1: the magic `RFRC`, the version (uint16), the header's length (uint32), the header as UTF-8 JSON, and
the arrays one after the other in C order. The header holds dtype, shape and offset of each. All is little-endian.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import fields
from typing import Any, cast

import numpy as np

from refract.work import (
    Answer,
    Base,
    BlobRef,
    Distributions,
    Divergence,
    EffectiveKV,
    Generation,
    TokenScores,
)

Storable = Answer | EffectiveKV

VERSION = 1
_MAGIC = b"RFRC"
_HEAD = struct.Struct("<4sHI")
_ROOTS = (Generation, TokenScores, Base, Divergence, EffectiveKV)
_DTYPES = frozenset({"<f4", "<f8", "<i4", "<i8", "|b1"})
_TYPES = {kind.__name__: kind for kind in (*_ROOTS, Distributions, BlobRef)}


class CodecError(ValueError):
    """Bytes that no answer was ever encoded as, or of a newer version."""


def encode(value: Storable) -> bytes:
    """The bytes of an answer; equal answers have equal bytes. Raises: TypeError for anything that is never stored."""
    if not isinstance(value, _ROOTS):
        raise TypeError(f"{type(value).__name__} is never stored")
    numbers = bytearray()
    header = json.dumps(_plain(value, numbers), separators=(",", ":"), allow_nan=False).encode()
    return _HEAD.pack(_MAGIC, VERSION, len(header)) + header + numbers


def decode(data: bytes) -> Storable:
    """The answer `encode` made these bytes of. Raises: CodecError for any other bytes."""
    try:
        return _decode(data)
    except CodecError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, struct.error) as error:
        raise CodecError(f"not an encoded answer: {error}") from error


def _decode(data: bytes) -> Storable:
    magic, version, length = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise CodecError("not an encoded answer: it does not begin with RFRC")
    if version != VERSION:
        raise CodecError(f"an answer of format version {version}, expected {VERSION}")
    header = data[_HEAD.size : _HEAD.size + length]
    value = _rich(json.loads(header.decode()), memoryview(data)[_HEAD.size + length :])
    if not isinstance(value, _ROOTS):
        raise CodecError(f"not an encoded answer: it holds a {type(value).__name__}")
    return value


def _plain(value: object, numbers: bytearray) -> object:
    """`value` as JSON; the content of arrays is moved to `numbers`."""
    if isinstance(value, np.ndarray):
        return _plain_array(value, numbers)
    if type(value).__name__ in _TYPES:
        content = {f.name: _plain(getattr(value, f.name), numbers) for f in fields(cast(Any, value))}
        return {"type": type(value).__name__, "fields": content}
    if isinstance(value, tuple):
        return [_plain(item, numbers) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{type(value).__name__} has no encoding")


def _plain_array(array: np.ndarray[Any, Any], numbers: bytearray) -> dict[str, object]:
    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).reshape(array.shape)
    if little.dtype.str not in _DTYPES:
        raise TypeError(f"arrays of {array.dtype} have no encoding")
    at = len(numbers)
    numbers += little.tobytes()
    return {"array": little.dtype.str, "shape": list(array.shape), "at": at}


def _rich(value: Any, numbers: memoryview) -> Any:
    if isinstance(value, list):
        return tuple(_rich(item, numbers) for item in value)
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return _rich_array(value["array"], value["shape"], value["at"], numbers)
    return _TYPES[value["type"]](**{name: _rich(item, numbers) for name, item in value["fields"].items()})


def _rich_array(dtype: str, shape: list[int], at: int, numbers: memoryview) -> np.ndarray[Any, Any]:
    if dtype not in _DTYPES:
        raise CodecError(f"not an encoded answer: arrays of {dtype}")
    array = np.frombuffer(numbers, dtype=dtype, count=math.prod(shape), offset=at)
    return array.reshape(shape).copy()
