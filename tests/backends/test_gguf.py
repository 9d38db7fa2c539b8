"""GGUF files: whole ones are read, damaged ones end in one line, whatever the damage."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refract.backends._gguf import GGUF, TENSOR_TYPES, read_gguf
from refract.errors import ModelError


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def entry(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: str | bytes, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def build(
    entries: tuple[bytes, ...], tensors: tuple[bytes, ...] = (), data: bytes = b"", *, version: int = 3, align: int = 32
) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(entries)) + b"".join(entries) + b"".join(tensors)
    return head + bytes(-len(head) % align) + data


ARCHITECTURE = entry("general.architecture", 8, text("llama"))
ENTRIES = (
    ARCHITECTURE,
    entry("llama.block_count", 4, struct.pack("<I", 2)),
    entry("llama.eps", 6, struct.pack("<f", 0.5)),
    entry("llama.flag", 7, b"\x01"),
    entry("tokens", 9, struct.pack("<IQ", 8, 2) + text("a") + text("é")),
    entry("scores", 9, struct.pack("<IQ2f", 6, 2, -1.0, 2.5)),
)
TENSORS = (tensor("a.weight", (4, 2)), tensor("b.weight", (32,), 2, 32))
WHOLE = build(ENTRIES, TENSORS, bytes(32 + 18))


def load(tmp_path: Path, data: bytes, name: str = "model.gguf") -> GGUF:
    file = tmp_path / name
    file.write_bytes(data)
    return read_gguf(file)


def refused(tmp_path: Path, data: bytes, name: str = "model.gguf") -> str:
    with pytest.raises(ModelError) as caught:
        load(tmp_path, data, name)
    assert "\n" not in caught.value.message
    assert caught.value.hint
    caught.value.message.encode()  # can be printed
    return caught.value.message


def test_every_value_and_tensor_is_read(tmp_path: Path) -> None:
    gguf = load(tmp_path, WHOLE)
    assert gguf.architecture == "llama"
    assert gguf.get("block_count") == 2
    assert gguf.get("missing", 7) == 7
    assert gguf.metadata["llama.eps"] == 0.5
    assert gguf.metadata["llama.flag"] is True
    assert gguf.metadata["tokens"] == ["a", "é"]
    assert gguf.metadata["scores"] == [-1.0, 2.5]
    first, second = gguf.tensors["a.weight"], gguf.tensors["b.weight"]
    assert (first.shape, first.type_name, first.size_bytes) == ((2, 4), "F32", 32)
    assert (second.shape, second.type_name, second.size_bytes) == ((32,), "Q4_0", 18)
    assert second.offset - first.offset == 32
    assert first.offset % 32 == 0


def test_another_alignment_moves_the_data(tmp_path: Path) -> None:
    entries = (ARCHITECTURE, entry("general.alignment", 4, struct.pack("<I", 128)))
    gguf = load(tmp_path, build(entries, TENSORS[:1], bytes(32), align=128))
    assert gguf.tensors["a.weight"].offset % 128 == 0


def test_agrees_with_the_package_that_writes_such_files(tmp_path: Path) -> None:
    file = tmp_path / "written.gguf"
    writer = GGUFWriter(file, "llama")
    writer.add_block_count(3)
    writer.add_token_list(["x", "yy"])
    writer.add_tensor("t", np.arange(64, dtype=np.float16).reshape(2, 32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    gguf = read_gguf(file)
    assert gguf.get("block_count") == 3
    assert gguf.metadata["tokenizer.ggml.tokens"] == ["x", "yy"]
    info = gguf.tensors["t"]
    assert info.shape == (2, 32)
    raw = file.read_bytes()[info.offset : info.offset + info.size_bytes]
    assert np.frombuffer(raw, np.float16).tolist() == list(range(64))


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    for size in range(len(WHOLE)):
        refused(tmp_path, WHOLE[:size])


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"PK\x03\x04" + WHOLE[4:], "starts with b'PK"),
        (b"FUGG" + WHOLE[4:], "starts with"),
        (build(ENTRIES, version=1), "version 1"),
        (build(ENTRIES, version=0x03000000), "version"),
        (build((entry("k", 99, b""),)), "type 99"),
        (build((entry("k", 9, struct.pack("<IQ", 9, 1)),)), "array of type 9"),
        (build((entry("general.alignment", 4, struct.pack("<I", 0)),)), "alignment 0"),
        (build((entry("general.alignment", 8, text("x")),)), "alignment 'x'"),
        (build(ENTRIES, (tensor("t", (4,), 250),), bytes(64)), "ggml type 250"),
        (build(ENTRIES, (tensor(b"\xff\n", (4,), 250),), bytes(64)), "ggml type 250"),
        (build(ENTRIES, (tensor("t", (2**40, 2**20)),), bytes(64)), "should end at byte"),
        (build(ENTRIES, (tensor("t", (4,), 0, 2**63),), bytes(64)), "should end at byte"),
        (build(ENTRIES, (tensor("t", (1, 1, 1, 1, 1)),), bytes(64)), "5 dimensions"),
    ],
)
def test_damage_is_named(tmp_path: Path, data: bytes, part: str) -> None:
    assert part in refused(tmp_path, data)


@pytest.mark.parametrize("kind", [0, 8])
def test_a_count_larger_than_the_file_takes_no_memory(tmp_path: Path, kind: int) -> None:
    data = build((entry("k", 9, struct.pack("<IQ", kind, 2**62)),))
    tracemalloc.start()
    try:
        refused(tmp_path, data)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def test_missing_and_unreadable_files_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.gguf", tmp_path):
        with pytest.raises(ModelError, match="cannot read"):
            read_gguf(path)


def test_a_path_with_spaces_and_other_scripts_and_a_link(tmp_path: Path) -> None:
    assert load(tmp_path, WHOLE, "mein Modell ü 模型.gguf").architecture == "llama"
    link = tmp_path / "link.gguf"
    link.symlink_to(tmp_path / "mein Modell ü 模型.gguf")
    assert read_gguf(link).architecture == "llama"


def part(number: int, count: int, *tensors: bytes) -> bytes:
    split = (
        entry("split.no", 2, struct.pack("<H", number)),
        entry("split.count", 2, struct.pack("<H", count)),
    )
    entries = ENTRIES + split if number == 0 else split
    return build(entries, tensors, bytes(64))


@pytest.mark.parametrize("given", [1, 2])
def test_all_parts_are_read_whichever_is_named(tmp_path: Path, given: int) -> None:
    (tmp_path / "m-00001-of-00002.gguf").write_bytes(part(0, 2, tensor("first", (4,))))
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(part(1, 2, tensor("second", (4,))))
    gguf = read_gguf(tmp_path / f"m-{given:05d}-of-00002.gguf")
    assert gguf.architecture == "llama"
    assert set(gguf.tensors) == {"first", "second"}
    assert gguf.tensors["second"].path.name == "m-00002-of-00002.gguf"


def test_missing_and_renamed_parts_are_named(tmp_path: Path) -> None:
    assert "m-00002-of-00002.gguf" in refused(tmp_path, part(0, 2), "m-00001-of-00002.gguf")
    assert "one of 3 parts" in refused(tmp_path, part(0, 3), "renamed.gguf")
    assert "one of 3 parts" in refused(tmp_path, part(0, 3), "m-00001-of-00002.gguf")


def test_type_sizes_agree_with_the_gguf_package() -> None:
    for number, (name, block, size) in TENSOR_TYPES.items():
        kind = GGMLQuantizationType(number)
        assert kind.name == name
        assert GGML_QUANT_SIZES[kind] == (block, size)


def either_read_or_refused(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    message = ""
    try:
        read_gguf(path)
    except ModelError as error:
        message = error.message
    assert "\n" not in message
    message.encode()  # can be printed


FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUZZ
@given(at=st.integers(0, len(WHOLE) - 1), new=st.binary(min_size=1, max_size=12), cut=st.integers(0, len(WHOLE)))
def test_mutated_files_are_read_or_refused(tmp_path: Path, at: int, new: bytes, cut: int) -> None:
    mutated = WHOLE[:at] + new + WHOLE[at + len(new) :]
    either_read_or_refused(tmp_path / "fuzz.gguf", mutated)
    either_read_or_refused(tmp_path / "fuzz.gguf", mutated[:cut])


@FUZZ
@given(tail=st.binary(max_size=300))
def test_noise_behind_a_good_start_is_read_or_refused(tmp_path: Path, tail: bytes) -> None:
    either_read_or_refused(tmp_path / "fuzz.gguf", b"GGUF" + struct.pack("<I", 3) + tail)
    either_read_or_refused(tmp_path / "fuzz.gguf", tail)
