"""Answers of /v1/completions, in the forms in which servers write them, and the width of a token's cache."""

from __future__ import annotations

import json
from math import inf, isnan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refract.backends._completions import (
    check_prompt,
    only_choice,
    read_entries,
    read_prompt_entries,
    to_listing,
    token_ids,
)
from refract.backends._kv_heads import kv_heads, stated_bytes
from refract.backends._source import find_model
from refract.errors import EngineError
from refract.kv import parse_kv
from tests.backends.toy_server import CONFIG, model_folder

# llama-server b11434, the prompt "[504, 253, 2]" of SmolLM2, shortened.
CONTENT = {
    "logprobs": {
        "content": [
            {
                "id": 198,
                "token": "\n",
                "logprob": -0.19814418256282806,
                "top_logprobs": [
                    {"id": 198, "token": "\n", "logprob": -0.19814418256282806},
                    {"id": 1, "token": "", "logprob": -3.089097261428833},
                ],
            }
        ]
    }
}
# vLLM 0.32.0 with return_tokens_as_token_ids: the sampled token comes first, whatever its rank.
LEGACY = {
    "token_ids": [2],
    "logprobs": {
        "tokens": ["token_id:2"],
        "token_logprobs": [-35.277381896972656],
        "top_logprobs": [{"token_id:2": -35.277381896972656, "token_id:260": -0.058, "token_id:355": -2.875}],
    },
}


def test_both_forms_are_read_by_id_best_first() -> None:
    (content,) = read_entries(CONTENT, "x") or []
    assert (content.token, content.top) == (198, ((198, -0.19814418256282806), (1, -3.089097261428833)))
    (legacy,) = read_entries(LEGACY, "x") or []
    assert (legacy.token, legacy.logprob) == (2, -35.277381896972656)
    assert [token for token, _ in legacy.top] == [260, 355, 2]
    assert token_ids(LEGACY, None) == (2,)
    assert token_ids(CONTENT, [content]) == (198,)


@pytest.mark.parametrize(
    "choice",
    [
        {},
        {"logprobs": None},
        {"logprobs": {}},
        {"logprobs": {"tokens": ["the"], "token_logprobs": [-1.0], "top_logprobs": [{"the": -1.0}]}},
        {"logprobs": {"content": [{"token": "the", "logprob": -1.0}]}},
    ],
)
def test_lists_by_text_tell_no_ids(choice: dict[str, Any]) -> None:
    assert read_entries(choice, "x") is None
    assert token_ids(choice, None) is None


@pytest.mark.parametrize(
    "choice",
    [
        {"logprobs": {"content": [{"id": 5}]}},
        {"logprobs": {"content": [{"id": 5, "logprob": "much"}]}},
        {"logprobs": {"content": [7]}},
        {"logprobs": {"tokens": ["token_id:5"], "token_logprobs": []}},
        {"logprobs": {"tokens": ["token_id:x"], "token_logprobs": [-1.0]}},
    ],
)
def test_lists_of_something_else_are_an_error(choice: dict[str, Any]) -> None:
    with pytest.raises(EngineError, match="not as expected"):
        read_entries(choice, "the server")


def test_what_is_not_finite_stays_so() -> None:
    choice = {"logprobs": {"content": [{"id": 5, "logprob": None, "top_logprobs": [{"id": 5, "logprob": None}]}]}}
    (entry,) = read_entries(choice, "x") or []
    assert isnan(entry.logprob)
    assert isnan(to_listing([entry], (5,), 1, "x").logprobs[0])
    choice = {"logprobs": {"tokens": ["token_id:5"], "token_logprobs": [-9999.0], "top_logprobs": None}}
    (entry,) = read_entries(choice, "x") or []
    assert entry.logprob == -inf


def test_a_listing_holds_the_mass_outside() -> None:
    (entry,) = read_entries(LEGACY, "x") or []
    found = to_listing([entry], (2,), 2, "x")
    assert found.listed.ids.tolist() == [[260, 355]]
    np.testing.assert_allclose(np.exp(found.listed.tail), [max(0.0, 1 - np.exp(-0.058) - np.exp(-2.875))], atol=1e-6)
    with pytest.raises(EngineError, match="listed 3 tokens, 4 were asked for"):
        to_listing([entry], (2,), 4, "x")
    with pytest.raises(EngineError, match="other tokens"):
        to_listing([entry], (3,), 2, "x")


def test_a_prompts_entries_are_its_own_tokens() -> None:
    found = [None, {"7": {"logprob": -15.5}, "29": {"logprob": -1.25}}, {"8": {"logprob": -0.5}}]
    entries = read_prompt_entries({"prompt_logprobs": found}, (5, 7, 8), "x")
    assert [(entry.token, entry.logprob) for entry in entries] == [(7, -15.5), (8, -0.5)]
    assert entries[0].top == ((29, -1.25), (7, -15.5))
    for wrong in (None, found[:2]):
        with pytest.raises(EngineError, match="no log-probabilities of the 3 tokens"):
            read_prompt_entries({"prompt_logprobs": wrong}, (5, 7, 8), "x")
    with pytest.raises(EngineError, match="not as expected"):
        read_prompt_entries({"prompt_logprobs": found}, (5, 6, 8), "x")


@pytest.mark.parametrize("answer", [None, [], {}, {"choices": []}, {"choices": [1]}, {"choices": [{}, {}]}])
def test_one_choice_is_expected(answer: Any) -> None:
    with pytest.raises(EngineError, match="the one choice"):
        only_choice(answer, "x")


def test_an_answer_to_another_prompt_is_refused() -> None:
    for answer in ({}, {"usage": None}, {"usage": {"prompt_tokens": 2}}):
        check_prompt(answer, (1, 2), "x")
    with pytest.raises(EngineError, match="a prompt of 3 tokens, 2 were sent") as caught:
        check_prompt({"usage": {"prompt_tokens": 3}}, (1, 2), "x")
    assert "beginning of sequence" in (caught.value.hint or "")


def test_bytes_of_a_token(tmp_path: Path) -> None:
    source = find_model(str(model_folder(tmp_path / "a")))
    values = 4 * 2 * 16  # layers, key-value heads, head dimension
    assert kv_heads(source) == 2
    assert stated_bytes(source, parse_kv("ctk=f16,ctv=f16"), 0) == values * 4
    assert stated_bytes(source, parse_kv("ctk=f32,ctv=f32"), 0) == values * 8
    assert stated_bytes(source, parse_kv("ctk=q8_0,ctv=q4_0"), 4) == values * 13 / 8
    assert stated_bytes(source, parse_kv("ctk=q8_0,ctv=q4_0"), 3) == values / 4 * (3 * 13 / 8 + 4)


def test_without_heads_no_bytes_are_stated(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "b")
    config = {key: value for key, value in CONFIG.items() if key != "num_key_value_heads"}
    (folder / "config.json").write_text(json.dumps({**config, "head_dim": 16}))
    assert kv_heads(find_model(str(folder))) == 4
    (folder / "config.json").write_text(json.dumps({**config, "num_key_value_heads": [1, 2], "head_dim": 16}))
    assert stated_bytes(find_model(str(folder)), parse_kv("ctk=f16,ctv=f16"), 0) == 0.0
