"""Perturbations: one small change of prose, the same in every process, never inside code or data."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refract.axes.perturbations import PERTURBATIONS, Edit, perturb
from refract.axes.protected import protected_spans
from refract.axes.synonyms import SYNONYMS

TEXT = "Explain briefly how a kettle works, and give a short example."


def change(text: str, kind: str, *, seed: int = 0, prompt_id: str = "p0") -> Edit:
    edit = perturb(text, kind, seed=seed, prompt_id=prompt_id)
    assert edit is not None
    return edit


def test_each_kind_by_hand() -> None:
    assert change("Explain it.", "case").text == "explain it."
    assert change("explain it.", "case").text == "Explain it."
    assert change("Explain it.", "punct").text == "Explain it"
    assert change("Explain it", "punct").text == "Explain it."
    assert change("Why? ", "punct").text == "Why "
    assert change("为什么？", "punct").text == "为什么"
    assert change("Explain it.", "paraphrase").text == "Describe it."
    assert change("one two", "spacing").text == "one  two"
    assert change("a river", "typo").text in ("a rievr", "a rvier")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Run it!", "typo"),
        ("NASA HTTP", "typo"),
        ("解释一下水的循环。", "typo"),
        ("解释一下水的循环。", "case"),
        ("解释一下水的循环。", "spacing"),
        ("2 + 2", "case"),
        ("Wait...", "punct"),
        ("Fix `this`", "punct"),
        ("解释一下", "punct"),
        ("Erkläre das Wetter.", "paraphrase"),
        ("word", "spacing"),
        ("   ", "punct"),
    ],
)
def test_what_does_not_apply_is_none(text: str, kind: str) -> None:
    assert perturb(text, kind, seed=0, prompt_id="p") is None


PROTECTED = [
    "```python\nexplain = write(short story)\n```",
    "~~~\nexplain the short example\n~~~",
    "```\nnever closed, explain",
    "`explain briefly`",
    "    explain = 1",
    '{"explain": "a short story", "steps": [1, 2]}',
    '{"explain": "a short story", "steps": [1, 2',
    '[{"write": 1}, {"write": 2}]',
    "https://example.org/explain/write?short=1",
    "<explain short='yes'>",
    '"explain briefly"',
    "explain_it.write(short story)",
]


@pytest.mark.parametrize("block", PROTECTED)
def test_code_and_data_stay_as_they_are(block: str) -> None:
    for kind in PERTURBATIONS:
        for seed in range(10):
            edit = perturb(f"Look at this:\n{block}", kind, seed=seed, prompt_id="p")
            assert edit is None or edit.text.endswith(block)


def test_the_place_depends_on_seed_and_prompt() -> None:
    assert len({change(TEXT, "typo", seed=s).text for s in range(30)}) > 5
    assert len({change(TEXT, "typo", prompt_id=f"p{i}").text for i in range(30)}) > 5


def test_another_process_makes_the_same_changes() -> None:
    code = (
        "import json, sys; from refract.axes.perturbations import *; "
        "print(json.dumps([perturb(sys.argv[1], k, seed=7, prompt_id='é').text for k in PERTURBATIONS]))"
    )
    here = [change(TEXT, kind, seed=7, prompt_id="é").text for kind in PERTURBATIONS]
    for hash_seed in ("0", "1"):
        made = subprocess.run(
            [sys.executable, "-c", code, TEXT],
            capture_output=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        )
        assert json.loads(made.stdout) == here


def test_synonyms_are_single_lower_case_words_and_never_their_own() -> None:
    for word, other in SYNONYMS.items():
        assert (word + other).isalpha()
        assert word == word.lower() != other == other.lower()


@settings(deadline=None)
@given(
    text=st.lists(
        st.sampled_from([*PROTECTED, TEXT, "Write a tale! ", "\n", " ", "ünïcode café\u0301 ", "👩‍🚀", "مرحبا", "x=1;"])
        | st.text(max_size=20),
        max_size=6,
    ).map("\n".join),
    kind=st.sampled_from(sorted(PERTURBATIONS)),
    seed=st.integers(0, 99),
)
def test_a_change_is_one_place_outside_protected_spans(text: str, kind: str, seed: int) -> None:
    edit = perturb(text, kind, seed=seed, prompt_id="p")
    if edit is None:
        return
    assert edit.text != text
    assert text[edit.at : edit.at + len(edit.before)] == edit.before
    assert edit.text == text[: edit.at] + edit.after + text[edit.at + len(edit.before) :]
    end = edit.at + max(1, len(edit.before))
    assert all(end <= start or edit.at >= stop for start, stop in protected_spans(text))
