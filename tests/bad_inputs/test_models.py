"""Models that are missing, damaged or something else, as the llama.cpp engine meets them before it starts anything."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from refract import backends
from refract.cli import scoring
from refract.engine import Engine

from .conftest import Bad
from .files import unreadable

AGAIN, CONVERT, PATH = "download the model file again", "convert the model again", "give the path of a model"
MODELS = {
    "m-empty.gguf": ("m-empty.gguf is not a complete GGUF file: 0 bytes are too few", AGAIN),
    "m-text.gguf": ("it starts with b'not ' instead of b'GGUF'", AGAIN),
    "m-head.gguf": ("4 bytes are too few", AGAIN),
    "m-cut.gguf": ("the file ends in the middle of its header", AGAIN),
    "m-version.gguf": ("format version 99 is unknown", AGAIN),
    "m-big-endian.gguf": ("format version 50331648 is unknown", AGAIN),
    "m-many.gguf": ("the file ends in the middle of its header", AGAIN),
    "m-string.gguf": ("the file ends in the middle of its header", AGAIN),
    "m-type.gguf": ("metadata type 77 is unknown", AGAIN),
    "m-nothing.gguf": ("block_count should be a positive number, found None", CONVERT),
    "m-no-layers.gguf": ("block_count should be a positive number, found None", CONVERT),
    "m-no-layers-2.gguf": ("block_count should be a positive number, found 0", CONVERT),
    "m-no-context.gguf": ("should be a positive number", CONVERT),
    "m-00001-of-00003.gguf": ("cannot read m-00002-of-00003.gguf: No such file", "check the path"),
    "naïve mödel 漢.gguf": ("naïve mödel 漢.gguf is not a complete GGUF file", AGAIN),
    "kept.json": ("kept.json is not a complete GGUF file", AGAIN),
    "model-empty": ("model-empty is a directory without config.json", ".gguf file"),
    "model-no-config": ("model-no-config is a directory without config.json", ".gguf file"),
    "model-bad-config": ("model-bad-config/config.json cannot be read: Expecting value", "download the model again"),
    "model-latin1": ("model-latin1/config.json cannot be read", "download the model again"),
    "model-list-config": ("model-list-config/config.json holds no object", "download the model again"),
    "model-no-weights": ("model-no-weights holds no model*.safetensors", "download the model's weights"),
    "model-no-heads": ("num_attention_heads should be a positive number, found 0", CONVERT),
    "model-no-layers": ("num_hidden_layers should be a positive number, found None", CONVERT),
    "model-odd-config": ("num_attention_heads should be a positive number, found 'two'", CONVERT),
    "model-odd-quantization": ("quantization should be an object, found 4", "download the model again"),
    "model-text-config": ("llama.cpp runs GGUF files, model-text-config is a folder", "convert it to GGUF"),
    "loop.gguf": ("there is no model at 'loop.gguf'", PATH),
    "dangling.gguf": ("there is no model at 'dangling.gguf'", PATH),
    "absent.gguf": ("there is no model at 'absent.gguf'", PATH),
    "org/name.gguf": ("there is no model at 'org/name.gguf'", PATH),
    "/dev/null": ("there is no model at '/dev/null'", PATH),
    "m" * 1000: ("--model mmm", "check the path"),
    "~nobody-of-this-name/m.gguf": ("--model ~nobody-of-this-name/m.gguf: Could not determine home", "check the path"),
    "gemma3": ("the model gemma3 is not here yet", "refract fetch --model gemma3"),
}


@pytest.fixture
def real(bad: Bad, monkeypatch: pytest.MonkeyPatch) -> Bad:
    """The real engine, whose server can say what it is and nothing else."""

    def load_engine(name: str | None, options: Mapping[str, str], cache_dir: Path) -> Engine:
        return backends.load_engine("llamacpp", {**options, "llama_bin": "bin"}, cache_dir)

    monkeypatch.setattr(scoring, "load_engine", load_engine)
    return bad


@pytest.mark.parametrize(("name", "expected"), MODELS.items(), ids=[name[:30] for name in MODELS])
def test_refused(real: Bad, name: str, expected: tuple[str, str]) -> None:
    small = ("--prompts", "prompts.jsonl", "--corpus", "corpus.txt", "--candidate", "ctk=q8_0,ctv=q4_0")
    real.refuses("score", *small, "--model", name, code=3, line=expected[0], hint=expected[1])


@pytest.mark.usefixtures("no_root_powers")
def test_without_the_right_to_read(real: Bad) -> None:
    unreadable(real.folder, "m-text.gguf")
    line, hint = "cannot read m-text.gguf: Permission denied", "check the path and its permissions"
    real.refuses("score", "--candidate", "ctk=q8_0,ctv=q4_0", "--model", "m-text.gguf", code=3, line=line, hint=hint)
