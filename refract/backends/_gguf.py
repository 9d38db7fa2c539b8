"""Reads GGUF files: metadata at once, tensors as memory maps.

The `gguf` package's reader wraps every array element in numpy views and takes 3 s for a 49k vocabulary and 12 s for
262k, which every run would pay before its first token; this one takes 0.05 s. Dequantisation stays with that package.
Layout: docs/gguf.md of the ggml repository, version 3 (version 2 has the same fields).
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from refract.errors import ModelError

Scalar = int | float | bool | str
Value = Scalar | list[Scalar]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
# metadata type number -> code of the struct module
_SCALARS: Mapping[int, str] = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))

# ggml type number -> name, block size in elements, block size in bytes (ggml.c of llama.cpp b11434)
TENSOR_TYPES: Mapping[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136), 29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """Where one tensor lies: `shape` row-major (the file stores it reversed), `offset` from the file's start."""

    name: str
    shape: tuple[int, ...]
    type_name: str
    offset: int
    size_bytes: int
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUF:
    """A GGUF model: metadata of its first part and the tensors of all parts."""

    path: Path
    metadata: Mapping[str, Value]
    tensors: Mapping[str, TensorInfo]

    @property
    def architecture(self) -> str:
        """The model family as the file names it, such as "llama" or "gemma3"."""
        return str(self.metadata.get("general.architecture", ""))

    def get(self, key: str, default: Value | None = None) -> Value | None:
        """The metadata value `key` of this architecture (`{arch}.` is put before it), or `default`."""
        return self.metadata.get(f"{self.architecture}.{key}", default)


class _Cursor:
    """Reads little-endian values from a buffer, refusing to run past its end."""

    def __init__(self, buffer: mmap.mmap, path: Path) -> None:
        self.buffer, self.path, self.position = buffer, path, 0

    def take(self, count: int) -> int:
        start = self.position
        if count > len(self.buffer) - start:
            raise _damaged(self.path, "the file ends in the middle of its header")
        self.position = start + count
        return start

    def unpack(self, code: str) -> Scalar:
        layout = "<" + code
        value: Scalar = struct.unpack_from(layout, self.buffer, self.take(struct.calcsize(layout)))[0]
        return value

    def uint(self, code: str) -> int:
        return int(self.unpack(code))

    def string(self) -> str:
        size = self.uint("Q")
        start = self.take(size)
        return self.buffer[start : start + size].decode("utf-8", "surrogateescape")

    def value(self, kind: int) -> Value:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self.array()
        if kind not in _SCALARS:
            raise _damaged(self.path, f"metadata type {kind} is unknown")
        return self.unpack(_SCALARS[kind])

    def array(self) -> list[Scalar]:
        kind, count = self.uint("I"), self.uint("Q")
        if kind == _STRING:
            return self._strings(count)
        if kind not in _SCALARS:
            raise _damaged(self.path, f"metadata array of type {kind} is not supported")
        layout = f"<{count}{_SCALARS[kind]}"
        size = struct.calcsize("<" + _SCALARS[kind]) * count
        start = self.take(size)
        return list(struct.unpack_from(layout, self.buffer, start))

    def _strings(self, count: int) -> list[Scalar]:
        """The next `count` strings. A vocabulary has 100,000 of them, so this loop does nothing it could leave out."""
        buffer, position, end, read_size = self.buffer, self.position, len(self.buffer), struct.Struct("<Q").unpack_from
        found: list[Scalar] = []
        for _ in range(count):
            start = position + 8
            position = start + read_size(buffer, position)[0] if start <= end else end + 1
            if position > end:
                raise _damaged(self.path, "the file ends in the middle of its header")
            found.append(buffer[start:position].decode("utf-8", "surrogateescape"))
        self.position = position
        return found


def _damaged(path: Path, what: str) -> ModelError:
    return ModelError(f"{path.name} is not a complete GGUF file: {what}", hint="download the model file again")


def _read_part(path: Path) -> tuple[dict[str, Value], list[TensorInfo]]:
    try:
        with path.open("rb") as file:
            if path.stat().st_size < 24:
                raise _damaged(path, f"{path.stat().st_size} bytes are too few")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as buffer:
                return _parse(_Cursor(buffer, path))
    except OSError as error:
        raise ModelError(
            f"cannot read {path.name}: {error.strerror}", hint="check the path and its permissions"
        ) from None


def _parse(cursor: _Cursor) -> tuple[dict[str, Value], list[TensorInfo]]:
    start = cursor.take(4)
    magic = cursor.buffer[start : start + 4]
    if magic != _MAGIC:
        raise _damaged(cursor.path, f"it starts with {magic!r} instead of b'GGUF'")
    version = cursor.uint("I")
    if version not in _VERSIONS:
        raise _damaged(cursor.path, f"format version {version} is unknown (2 and 3 are supported)")
    tensor_count, value_count = cursor.uint("Q"), cursor.uint("Q")
    metadata: dict[str, Value] = {}
    for _ in range(value_count):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.uint("I"))
    headers = [_tensor_header(cursor) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise _damaged(cursor.path, f"alignment {alignment!r} is not a positive number")
    data_start = math.ceil(cursor.position / alignment) * alignment
    tensors = [_tensor(cursor, header, data_start) for header in headers]
    return metadata, tensors


def _tensor_header(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.string()
    dimensions = cursor.uint("I")
    if not 1 <= dimensions <= 4:
        raise _damaged(cursor.path, f"tensor {name!r} has {dimensions} dimensions")
    shape = tuple(cursor.uint("Q") for _ in range(dimensions))
    return name, shape[::-1], cursor.uint("I"), cursor.uint("Q")


def _tensor(cursor: _Cursor, header: tuple[str, tuple[int, ...], int, int], data_start: int) -> TensorInfo:
    name, shape, kind, offset = header
    if kind not in TENSOR_TYPES:
        raise ModelError(
            f"{cursor.path.name}: tensor {name!r} has ggml type {kind}, which is not supported",
            hint="requantise the model to one of " + " ".join(t[0] for t in TENSOR_TYPES.values()),
        )
    type_name, block, block_bytes = TENSOR_TYPES[kind]
    size = math.prod(shape) // block * block_bytes
    start = data_start + offset
    if start + size > len(cursor.buffer):
        raise _damaged(
            cursor.path, f"tensor {name!r} should end at byte {start + size}, the file has {len(cursor.buffer)}"
        )
    return TensorInfo(name=name, shape=shape, type_name=type_name, offset=start, size_bytes=size, path=cursor.path)


def part_paths(path: Path, metadata: Mapping[str, Value]) -> Iterator[Path]:
    """All files of a model that `gguf-split` cut in parts, `path` alone when it was not.

    Raises: ModelError when the name does not follow `-00001-of-00003.gguf`.
    """
    count = metadata.get("split.count", 1)
    if not isinstance(count, int) or count <= 1:
        yield path
        return
    match = re.fullmatch(r"(.*)-(\d{5})-of-(\d{5})\.gguf", path.name)
    if match is None or int(match[3]) != count:
        raise ModelError(
            f"{path.name} is one of {count} parts but is not named …-00001-of-{count:05d}.gguf",
            hint="keep the parts' original names, or join them with llama-gguf-split --merge",
        )
    for number in range(1, count + 1):
        yield path.with_name(f"{match[1]}-{number:05d}-of-{count:05d}.gguf")


def read_gguf(path: Path) -> GGUF:
    """The metadata and tensor table of the GGUF model at `path`, all parts of it.

    Raises: ModelError when the file is missing, unreadable, damaged, cut short, or one of its parts is missing.
    """
    metadata, tensors = _read_part(path)
    for part in part_paths(path, metadata):
        if part == path:
            continue
        part_metadata, part_tensors = _read_part(part)
        tensors += part_tensors
        if part_metadata.get("split.no", 0) == 0:
            metadata = part_metadata
    return GGUF(path=path, metadata=metadata, tensors={t.name: t for t in tensors})
