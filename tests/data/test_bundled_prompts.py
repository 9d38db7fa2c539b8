"""The bundled prompts: their number, balance and variety, and that every perturbation finds something to act on."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from itertools import combinations

import pytest

from refract.data.prompts import TIERS, PromptSet, load_prompts
from refract.data.shipped import shipped

V1_CONTENT = "965c0326a70063ab9c32a19a5f7a6e5e9c5f82dce02023452af5183402430cea"
CATEGORIES = {
    "factual": 28,
    "arithmetic": 28,
    "code": 28,
    "reasoning": 28,
    "instruction": 28,
    "conversation": 28,
    "extraction": 28,
    "multilingual": 28,
    "long-context": 16,
}
PARAPHRASABLE = (
    "explain|describe|list|write|give|show|big|small|fast|important|help|make|use|find|tell|begin|difference|example|"
    "reason|way"
)
LETTER = r"[^\W\d_]"
ACTS_ON = {
    "typo": rf"{LETTER}{{4,}}",
    "case": r"[A-Za-zÀ-žА-я]",
    "punct": r"[.,;:!?。、，؟،।]",
    "paraphrase": rf"(?i)\b({PARAPHRASABLE})\b",
    "spacing": r"\S\s+\S+\s+\S+\s+\S",
}


@pytest.fixture(scope="module")
def bundled() -> PromptSet:
    return load_prompts()


def questions(prompts: PromptSet) -> list[str]:
    return [prompt.messages[-1].content for prompt in prompts.prompts]


def test_sizes_of_the_tiers(bundled: PromptSet) -> None:
    assert [len(bundled.tier(t).prompts) for t in TIERS] == [24, 96, 240]
    assert bundled.tier("full").sha256 == bundled.sha256
    assert len({bundled.tier(t).sha256 for t in TIERS}) == 3


def test_the_content_is_the_published_one(bundled: PromptSet) -> None:
    """Old reports stay comparable only as long as v1 does not change: a changed set is a new file."""
    assert bundled.name == "refract-v1"
    assert bundled.sha256 == V1_CONTENT


def test_the_readme_states_counts_and_digests(bundled: PromptSet) -> None:
    folder = shipped("prompts")
    readme = (folder / "README.md").read_text(encoding="utf-8")
    assert hashlib.sha256((folder / "v1.jsonl").read_bytes()).hexdigest() in readme
    assert bundled.sha256 in readme
    assert "CC0-1.0" in readme
    for category, count in CATEGORIES.items():
        assert re.search(rf"^\| {category} \|.*\| {count} \|$", readme, re.M)


def test_categories_have_even_shares_in_every_tier(bundled: PromptSet) -> None:
    assert Counter(p.category for p in bundled.prompts) == CATEGORIES
    for tier in ("quick", "default"):
        counts = Counter(p.category for p in bundled.tier(tier).prompts)
        assert set(counts) == set(CATEGORIES)
        assert max(counts.values()) - min(counts.values()) <= (1 if tier == "quick" else 3)


def test_tiers_come_in_order_and_categories_alternate(bundled: PromptSet) -> None:
    ranks = [TIERS.index(p.tier) for p in bundled.prompts]
    assert ranks == sorted(ranks)
    assert all(len({p.category for p in bundled.prompts[i : i + 9]}) >= 7 for i in range(0, 232, 9))


def test_ids_name_their_category(bundled: PromptSet) -> None:
    assert len({p.id for p in bundled.prompts}) == 240
    assert all(re.fullmatch(rf"{p.category}-\d{{3}}", p.id) for p in bundled.prompts)


@pytest.mark.parametrize("perturbation", ACTS_ON)
@pytest.mark.parametrize("tier", TIERS)
def test_every_perturbation_can_act_on_most_prompts(bundled: PromptSet, perturbation: str, tier: str) -> None:
    texts = questions(bundled.tier(tier))
    assert sum(bool(re.search(ACTS_ON[perturbation], text)) for text in texts) >= 0.8 * len(texts)


def test_no_two_questions_share_much_wording(bundled: PromptSet) -> None:
    def grams(text: str) -> set[tuple[str, ...]]:
        words = text.lower().split()
        return {tuple(words[i : i + 4]) for i in range(len(words) - 3)}

    sets = [g for g in map(grams, questions(bundled)) if g]
    assert max(len(a & b) / min(len(a), len(b)) for a, b in combinations(sets, 2)) < 0.2


def test_conversations_have_turns_and_long_passages_are_long(bundled: PromptSet) -> None:
    """Turns alternate and none is the system's: there are chat templates that raise an error otherwise."""
    for prompt in bundled.prompts:
        roles = [m.role for m in prompt.messages]
        assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]
        assert (len(roles) > 1) == (prompt.category == "conversation")
        words = len(prompt.messages[-1].content.split())
        assert (600 <= words <= 1500) == (prompt.category == "long-context")


def test_multilingual_prompts_span_scripts(bundled: PromptSet) -> None:
    text = "".join(t for p, t in zip(bundled.prompts, questions(bundled), strict=True) if p.category == "multilingual")
    assert [letter for letter in "ñçüшहع请の한ığóå" if letter not in text] == []


def test_nothing_sounds_like_a_secret(bundled: PromptSet) -> None:
    assert not re.search(r"(?i)password|passcode|secret|api key|token\b", "\n".join(questions(bundled)))


def test_the_file_is_plain_json_lines() -> None:
    raw = (shipped("prompts") / "v1.jsonl").read_bytes()
    assert b"\r" not in raw
    assert raw.endswith(b"\n")
    assert all(list(json.loads(line)) == ["id", "category", "tier", "messages"] for line in raw.splitlines())
