"""Answers as bytes and back: a JSON header that names every field, then numpy's own array format. Nothing is pickled.

Layout, version 1: the magic `RFRC`, the version (uint16), the header's length (uint32), the header as UTF-8 JSON, and
the arrays in the `.npy` format one after the other, in the order the header numbers them. Integers are little-endian.
"""

from __future__ import annotations

import io
import json
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
_TYPES = {kind.__name__: kind for kind in (*_ROOTS, Distributions, BlobRef)}


class CodecError(ValueError):
    """Bytes that no answer was ever encoded as, or of a newer version."""


def encode(value: Storable) -> bytes:
    """The bytes of an answer; equal answers have equal bytes. Raises: TypeError for anything that is never stored."""
    if not isinstance(value, _ROOTS):
        raise TypeError(f"{type(value).__name__} is never stored")
    arrays: list[np.ndarray[Any, Any]] = []
    header = json.dumps(_plain(value, arrays), separators=(",", ":"), allow_nan=False).encode()
    body = io.BytesIO()
    body.write(_HEAD.pack(_MAGIC, VERSION, len(header)))
    body.write(header)
    for array in arrays:
        np.lib.format.write_array(body, np.ascontiguousarray(array), version=(1, 0), allow_pickle=False)
    return body.getvalue()


def decode(data: bytes) -> Storable:
    """The answer `encode` made these bytes of. Raises: CodecError for any other bytes."""
    try:
        return _decode(data)
    except CodecError:
        raise
    except (ValueError, KeyError, TypeError, IndexError, EOFError, struct.error) as error:
        raise CodecError(f"not an encoded answer: {error}") from error


def _decode(data: bytes) -> Storable:
    magic, version, length = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise CodecError("not an encoded answer: it does not begin with RFRC")
    if version != VERSION:
        raise CodecError(f"an answer of format version {version}, expected {VERSION}")
    body = io.BytesIO(data[_HEAD.size + length :])
    arrays = []
    while body.tell() < len(body.getbuffer()):
        arrays.append(np.lib.format.read_array(body, allow_pickle=False))
    value = _rich(json.loads(data[_HEAD.size : _HEAD.size + length]), arrays)
    if not isinstance(value, _ROOTS):
        raise CodecError(f"not an encoded answer: it holds a {type(value).__name__}")
    return value


def _plain(value: object, arrays: list[np.ndarray[Any, Any]]) -> object:
    """`value` as JSON; arrays are moved into `arrays` and leave their number behind."""
    if isinstance(value, np.ndarray):
        arrays.append(value)
        return {"array": len(arrays) - 1}
    if type(value).__name__ in _TYPES:
        content = {f.name: _plain(getattr(value, f.name), arrays) for f in fields(cast(Any, value))}
        return {"type": type(value).__name__, "fields": content}
    if isinstance(value, tuple):
        return [_plain(item, arrays) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{type(value).__name__} has no encoding")


def _rich(value: Any, arrays: list[Any]) -> Any:
    if isinstance(value, list):
        return tuple(_rich(item, arrays) for item in value)
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return arrays[value["array"]]
    return _TYPES[value["type"]](**{name: _rich(item, arrays) for name, item in value["fields"].items()})
