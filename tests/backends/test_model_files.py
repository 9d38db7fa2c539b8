"""Finding models and naming them by content: what is missing or damaged is said in one line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from refract.backends._fingerprint import fingerprint
from refract.backends._source import find_model
from refract.errors import ModelError

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 2,
    "max_position_embeddings": 2048,
}


def directory(folder: Path, **changes: object) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def gguf(path: Path, *, parts: int = 1, number: int = 0) -> Path:
    writer = pytest.importorskip("gguf").GGUFWriter(path, "llama")
    writer.add_block_count(4)
    writer.add_context_length(2048)
    writer.add_embedding_length(64)
    writer.add_head_count(2)
    if parts > 1:
        writer.add_uint16("split.count", parts)
        writer.add_uint16("split.no", number)
    import numpy as np

    writer.add_tensor(f"blk.{number}.attn_q.weight", np.zeros((64, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_directory_says_what_it_is(tmp_path: Path) -> None:
    source = find_model(str(directory(tmp_path / "ein Modell – größer", head_dim=48)))
    assert (source.name, source.layers, source.head_dim) == ("ein Modell – größer", 4, 48)
    assert not source.is_gguf


def test_a_gguf_behind_a_link_with_a_strange_name(tmp_path: Path) -> None:
    link = tmp_path / "with space ünïcode.gguf"
    link.symlink_to(gguf(tmp_path / "real.gguf"))
    source = find_model(str(link))
    assert (source.architecture, source.layers, source.head_dim) == ("llama", 4, 32)
    assert str(tmp_path) not in source.name


def test_all_parts_of_a_split_model_count(tmp_path: Path) -> None:
    for number in range(2):
        gguf(tmp_path / f"m-0000{number + 1}-of-00002.gguf", parts=2, number=number)
    source = find_model(str(tmp_path / "m-00001-of-00002.gguf"))
    assert [file.name for file in source.files] == ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]
    (tmp_path / "m-00002-of-00002.gguf").unlink()
    with pytest.raises(ModelError, match=r"cannot read m-00002-of-00002\.gguf"):
        find_model(str(tmp_path / "m-00001-of-00002.gguf"))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_file_cut_short_is_named_as_such(tmp_path: Path, share: float) -> None:
    whole = gguf(tmp_path / "m.gguf").read_bytes()
    (tmp_path / "half.gguf").write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ModelError, match=r"half\.gguf is not a complete GGUF file") as caught:
        find_model(str(tmp_path / "half.gguf"))
    assert "\n" not in caught.value.message
    assert caught.value.hint


def test_what_is_no_model_is_refused_in_one_line(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    no_weights = directory(tmp_path / "bare")
    (no_weights / "model.safetensors").unlink()
    broken = directory(tmp_path / "broken")
    (broken / "config.json").write_text("{")
    cases = {
        str(tmp_path / "nowhere"): "there is no model at",
        "nonsense": "there is no model at",
        str(empty): "a directory without config.json",
        str(no_weights): r"holds no model\*\.safetensors",
        str(broken): "cannot be read",
        str(directory(tmp_path / "layers", num_hidden_layers="many")): "num_hidden_layers should be a positive number",
    }
    for model, message in cases.items():
        with pytest.raises(ModelError, match=message) as caught:
            find_model(model)
        assert "\n" not in caught.value.message


def test_the_fingerprint_is_of_the_content(tmp_path: Path) -> None:
    one, two = tmp_path / "one.bin", tmp_path / "two.bin"
    one.write_bytes(b"same")
    two.write_bytes(b"same")
    cache = tmp_path / "cache"
    first = fingerprint([one], cache)
    assert first == fingerprint([two], cache) == fingerprint([one], None)
    two.write_bytes(b"other")
    assert fingerprint([two], cache) != first


def test_a_remembered_hash_is_used_until_the_file_changes(tmp_path: Path) -> None:
    file, cache = tmp_path / "m.bin", tmp_path / "cache"
    file.write_bytes(b"aaaa")
    first = fingerprint([file], cache)
    facts = file.stat()
    memory = cache / "fingerprints.json"
    assert str(facts.st_ino) in memory.read_text()
    file.write_bytes(b"bbbb")
    os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns + 1))
    assert fingerprint([file], cache) != first


@pytest.mark.parametrize("content", [b"", b"{", b'{"version": 99, "hashes": {}}', b'{"version": 1}'])
def test_a_damaged_memory_only_costs_time(tmp_path: Path, content: bytes) -> None:
    file, cache = tmp_path / "m.bin", tmp_path / "cache"
    file.write_bytes(b"x")
    cache.mkdir()
    (cache / "fingerprints.json").write_bytes(content)
    assert fingerprint([file], cache) == fingerprint([file], None)
