"""What users write: KV configurations, prompt files and model folders, in any disorder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from refract.backends._source import find_model
from refract.data.prompts import load_prompts
from refract.errors import RefractError
from refract.formats import FORMATS, KEYS
from refract.kv import parse_kv

from .mutations import FEW, SOME, damaged, damaged_json, json_values, odd_text

NAMES = st.sampled_from([*FORMATS, *KEYS, "ctk", "ctv", "K", "all", "last2", "0-3", "auto", "g", "rot", "prod", "wht"])
PIECES = st.sampled_from(["=", ",", ":", "+", "-", " ", "64", "0", "-1", "1.5", "1e3", "٣"]) | NAMES | odd_text
PROMPTS = (
    '{"id": "a", "category": "code", "prompt": "Write a line."}\n'
    '{"id": "b", "tier": "quick", "messages": [{"role": "system", "content": "Be brief."},'
    ' {"role": "user", "content": "Say \\u00e9."}]}\n'
)
CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "hidden_size": 64,
    "max_position_embeddings": 512,
    "quantization": {"bits": 4, "group_size": 64},
    "text_config": None,
}


def one_line(error: RefractError, start: str = "") -> None:
    assert error.message.startswith(start)
    assert "\n" not in error.message
    assert error.hint


@SOME
@given(st.lists(PIECES, max_size=14).map("".join) | st.lists(PIECES, max_size=9).map("=".join))
def test_kv_configurations(text: str) -> None:
    try:
        found = parse_kv(text)
    except RefractError as error:
        one_line(error)
        return
    assert parse_kv(str(found)) == found


@SOME
@given(damaged("ctk=turbo3:prod=1,ctv=affine4:g=64,boundary=2:type=q8_0,layers=0-3+6", (",", "=", ":", "ctk", "turbo")))
def test_a_kv_configuration_mistyped(text: str) -> None:
    test_kv_configurations.hypothesis.inner_test(text)  # type: ignore[attr-defined]


@FEW
@given(damaged(PROMPTS, ("{", "}", '"', "[", "\n", "null", "\\ud800", "\r\n")))
def test_prompt_files(tmp_path_factory: Any, text: str) -> None:
    file = tmp_path_factory.mktemp("p") / "prompts.jsonl"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    _prompts(file)


@FEW
@given(st.lists(damaged_json([json.loads(line) for line in PROMPTS.splitlines()]) | json_values, max_size=2))
def test_prompt_files_of_any_values(tmp_path_factory: Any, values: list[Any]) -> None:
    file = tmp_path_factory.mktemp("p") / "prompts.jsonl"
    rows = [row for value in values for row in (value if isinstance(value, list) else [value])]
    file.write_text("\n".join(json.dumps(row) for row in rows))
    _prompts(file)


def _prompts(file: Path) -> None:
    try:
        found = load_prompts(file)
    except RefractError as error:
        one_line(error, "prompts.jsonl")
        return
    for prompt in found.prompts:
        assert prompt.messages[-1].content.encode()


@FEW
@given(damaged_json(CONFIG))
def test_model_folders(tmp_path_factory: Any, config: Any) -> None:
    folder = tmp_path_factory.mktemp("m")
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"")
    try:
        found = find_model(str(folder))
    except RefractError as error:
        one_line(error)
        return
    assert found.layers > 0
    assert found.head_dim > 0
