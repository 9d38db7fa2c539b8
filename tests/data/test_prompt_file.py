"""A user's own prompt file: what is kept exactly, and what is refused with the line named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refract.data.prompts import Message, Prompt, PromptSet, load_prompts
from refract.errors import PromptsError

GOOD = b'{"prompt": "Explain tides."}\n'


def load(folder: Path, raw: bytes) -> PromptSet:
    file = folder / "mine.jsonl"
    file.write_bytes(raw)
    return load_prompts(file)


def line(**value: Any) -> bytes:
    return json.dumps(value).encode() + b"\n"


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def test_prompt_is_short_for_one_user_turn(tmp_path: Path) -> None:
    loaded = load(tmp_path, b'\n{"prompt": "Explain tides."}\n' + line(id="a", category="c", messages=[user("Hi.")]))
    assert loaded.name == "mine.jsonl"
    assert loaded.prompts == (
        Prompt(id="line-2", category="", tier="quick", messages=(Message(role="user", content="Explain tides."),)),
        Prompt(id="a", category="c", tier="quick", messages=(Message(role="user", content="Hi."),)),
    )


def test_a_file_without_tiers_is_always_asked_whole(tmp_path: Path) -> None:
    loaded = load(tmp_path, GOOD * 3)
    assert loaded.tier("quick") == loaded.tier("default") == loaded.tier("full") == loaded


def test_tiers_are_nested(tmp_path: Path) -> None:
    loaded = load(tmp_path, b"".join(line(id=t, prompt="x", tier=t) for t in ("full", "quick", "default")))
    ids = {t: [p.id for p in loaded.tier(t).prompts] for t in ("quick", "default", "full")}
    assert ids == {"quick": ["quick"], "default": ["quick", "default"], "full": ["full", "quick", "default"]}


def test_a_tier_that_is_unknown_or_has_no_prompt_is_refused(tmp_path: Path) -> None:
    loaded = load(tmp_path, line(prompt="x", tier="full"))
    with pytest.raises(PromptsError, match="unknown tier 'fast'"):
        loaded.tier("fast")
    with pytest.raises(PromptsError, match="no prompt in the tier default"):
        loaded.tier("default")


KEPT = {
    "space at the end": "Once upon a time ",
    "newline at the end": "Go on:\n",
    "blanks at the start": "  \tindented",
    "carriage return": "a\r\nb\r",
    "zero-width space": "zero\u200bwidth\u200b",
    "byte-order mark inside": "a\ufeffb",
    "joined emoji": "family \U0001f468\u200d\U0001f469\u200d\U0001f467 and flag \U0001f3f3\ufe0f\u200d\U0001f308",
    "right to left": "\u202bשלום, עולם!\u202c مرحبا",
    "line separators": "a\u2028b\u2029c\x85d\x0be\x0cf",
    "decomposed": "e\u0301 is not é",
    "escape codes": "\x1b[31mred\x1b[0m",
    "quotes and braces": '</script>{{ 7*7 }} "\\u0041"',
}


@pytest.mark.parametrize("text", KEPT.values(), ids=KEPT.keys())
@pytest.mark.parametrize("escaped", [True, False])
def test_contents_are_kept_exactly(tmp_path: Path, text: str, escaped: bool) -> None:
    raw = json.dumps({"messages": [user(text)]}, ensure_ascii=escaped).encode()
    assert load(tmp_path, raw).prompts[0].messages[0].content == text


@given(
    contents=st.lists(
        st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1).filter(
            lambda text: not text.isspace()
        ),
        min_size=1,
        max_size=4,
    ),
    escaped=st.booleans(),
    end=st.sampled_from([b"\n", b"\r\n", b"\n\n", b" \t\r\n"]),
    bom=st.sampled_from([b"", b"\xef\xbb\xbf"]),
)
def test_round_trip_of_any_content(
    tmp_path_factory: pytest.TempPathFactory, contents: list[str], escaped: bool, end: bytes, bom: bytes
) -> None:
    lines = [json.dumps({"id": f"p{n}", "prompt": c}, ensure_ascii=escaped).encode() for n, c in enumerate(contents)]
    loaded = load(tmp_path_factory.mktemp("round"), bom + end.join(lines) + end)
    assert [p.messages[0].content for p in loaded.prompts] == contents
    plain = load(tmp_path_factory.mktemp("plain"), b"\n".join(lines))
    assert loaded.sha256 == plain.sha256


def test_sha256_is_of_ids_roles_and_contents(tmp_path: Path) -> None:
    one = line(id="a", prompt="x") + line(id="b", prompt="y")
    same = b'\xef\xbb\xbf{"messages": [{"content": "x", "role": "user"}], "id": "a", "tier": "full"}\r\n\r\n'
    same += b'{"prompt": "\\u0079", "category": "c", "id": "b"}'
    digest = load(tmp_path, one).sha256
    assert len(digest) == len(bytes.fromhex(digest)) * 2 == 64
    assert digest == load(tmp_path, same).sha256
    others = [
        line(id="b", prompt="y") + line(id="a", prompt="x"),
        line(id="a", prompt="x") + line(id="b", prompt="y "),
        line(id="a", prompt="x") + line(id="c", prompt="y"),
        line(id="a", prompt="x"),
        line(id="a", messages=[{"role": "system", "content": "x"}, user("x")]) + line(id="b", prompt="y"),
    ]
    assert len({digest} | {load(tmp_path, raw).sha256 for raw in others}) == 6


NOT_UTF8 = b'{"prompt": "caf\xe9"}\n'

REFUSED: dict[str, tuple[bytes, str, str]] = {
    "empty": (b"", "mine.jsonl is empty", "path"),
    "only blanks": (b" \r\n\n", "mine.jsonl is empty", "path"),
    "only a byte-order mark": (b"\xef\xbb\xbf", "mine.jsonl is empty", "path"),
    "invalid UTF-8": (GOOD + NOT_UTF8, "line 2: byte 44 .0xe9. is not UTF-8", "iconv"),
    "cut in a character": (GOOD + b'{"prompt": "\xe2\x82', "line 2: byte 41 .0xe2. is not UTF-8", "iconv"),
    "UTF-16": ('{"prompt": "x"}'.encode("utf-16"), "is UTF-16, expected a prompt file", "UTF-8"),
    "binary": (b"GGUF\x03\0\0\0", "is binary .NUL at byte 5.", "path"),
    "array of prompts": (b'[{"prompt": "x"}]', "line 1: expected a JSON object, found an array", "line of its own"),
    "array over lines": (b'[\n{"prompt": "x"}\n]', "line 1: expected a JSON object, found an array", "one object"),
    "object over lines": (b'{\n"prompt": "x"\n}', "line 1: not a JSON object", "one object a line"),
    "cut line": (GOOD + b'{"prompt": "x', "line 2: not a JSON object: Unterminated string", "one object a line"),
    "two objects": (b'{"prompt": "x"} {"prompt": "y"}', "line 1: not a JSON object: Extra data", "one object a line"),
    "carriage returns only": (b'{"prompt": "x"}\r{"prompt": "y"}', "line 1: not a JSON object: Extra data", "line"),
    "text": (b'"x"', "line 1: expected a JSON object, found text", "one object a line"),
    "number": (b"3", "line 1: expected a JSON object, found a number", "one object a line"),
    "null": (b"null", "line 1: expected a JSON object, found null", "one object a line"),
    "plain prose": (b"Explain tides.\n", "line 1: not a JSON object", "one object a line"),
    "deep nesting": (b'{"a":' * 100_000, "line 1: not a JSON object", "one object a line"),
    "huge number": (b'{"prompt": ' + b"9" * 5000 + b"}", "line 1: ", "text"),
    "key twice": (b'{"prompt": "x", "prompt": "y"}', "line 1: the key 'prompt' occurs twice", "one of them"),
    "unknown key": (GOOD + line(prompt="x", catgory="c"), "line 2: unknown key 'catgory', expected id", "category"),
    "unlike any key": (line(prompt="x", zzz=1), "line 1: unknown key 'zzz'", "use one of id"),
    "unknown message key": (line(messages=[{**user("x"), "contents": 1}]), "unknown key 'contents'", "content"),
    "neither": (line(id="a"), "expected either .messages. or .prompt., found neither", "one object a line"),
    "both": (
        line(prompt="x", messages=[user("x")]),
        "expected either .messages. or .prompt., found both",
        "one object",
    ),
    "messages no list": (line(messages="x"), "messages: expected a list .*, found text", "one object a line"),
    "no message": (line(messages=[]), "messages: expected a list .*, found an empty array", "one object a line"),
    "message no object": (line(messages=["x"]), "message 1: expected an object .*, found text", "one object a line"),
    "no role": (line(messages=[{"content": "x"}]), "message 1: the key role is missing", "one object a line"),
    "no content": (line(messages=[{"role": "user"}]), "message 1: the key content is missing", "one object a line"),
    "role no text": (line(messages=[{"role": 1, "content": "x"}]), "role: expected text, found a number", "assistant"),
    "unknown role": (line(messages=[{"role": "User", "content": "x"}]), "role 'User' is unknown", "did you mean user"),
    "tool role": (line(messages=[{"role": "tool", "content": "x"}]), "role 'tool' is unknown, expected system", "use"),
    "late system": (
        line(messages=[user("x"), {"role": "system", "content": "s"}, user("y")]),
        "message 2: a sys",
        "fro",
    ),
    "last is not the user": (
        GOOD + line(messages=[user("x"), {"role": "assistant", "content": "y"}]),
        "line 2: the last message is from assistant, expected user",
        "drop what follows",
    ),
    "content no text": (line(messages=[user([{"type": "text"}])]), "content: expected text, found an array", "plain"),
    "content null": (line(messages=[user(None)]), "message 1: content: expected text, found null", "plain text"),
    "content bool": (line(prompt=True), "prompt: expected text, found true", "plain text"),
    "content object": (line(prompt={}), "prompt: expected text, found an object", "plain text"),
    "empty content": (GOOD + line(prompt=""), "line 2: prompt is empty", "remove the line"),
    "blank content": (line(prompt=" \n"), "line 1: prompt is empty", "remove the line"),
    "NUL": (line(prompt="a\0b"), "line 1: prompt holds a NUL .* at character 1", "engines written in C"),
    "high surrogate": (b'{"prompt": "a\\ud800"}', r"holds the lone surrogate \\ud800 at character 1", "both halves"),
    "low surrogate": (b'{"messages": [{"role": "user", "content": "\\udc00"}]}', r"surrogate \\udc00", "both halves"),
    "surrogate in id": (b'{"prompt": "a", "id": "\\ud800"}', r"id holds the lone surrogate", "both halves"),
    "surrogate in key": (b'{"prompt": "a", "\\ud800": 1}', r"unknown key '\\ud800'", "use one of"),
    "id twice": (
        line(id="a", prompt="x") + line(id="a", prompt="y"),
        "line 2: id 'a' is already that of line 1",
        "uni",
    ),
    "id taken by a line": (line(id="line-2", prompt="x") + GOOD, "line 2: id 'line-2' is already", "unique"),
    "id empty": (line(id="", prompt="x"), "line 1: id is empty", "leave the key out"),
    "id number": (line(id=7, prompt="x"), "line 1: id: expected text, found a number", "quotes"),
    "id with newline": (line(id="a\nb", prompt="x"), r"id 'a\\nb' holds characters", "plain words"),
    "id with escape code": (line(id="\x1b[2J", prompt="x"), r"id '\\x1b\[2J' holds characters", "plain words"),
    "category null": (line(category=None, prompt="x"), "category: expected text, found null", "quotes"),
    "unknown tier": (line(tier="defualt", prompt="x"), "tier 'defualt' is unknown, expected quick", "default"),
}


@pytest.mark.parametrize(("raw", "message", "hint"), REFUSED.values(), ids=REFUSED.keys())
def test_refusals_name_file_and_line(tmp_path: Path, raw: bytes, message: str, hint: str) -> None:
    with pytest.raises(PromptsError, match=message) as caught:
        load(tmp_path, raw)
    assert caught.value.exit_code == 2
    assert "mine.jsonl" in caught.value.message
    assert caught.value.hint is not None
    assert hint in caught.value.hint
    for text in (caught.value.message, caught.value.hint):
        assert text.isprintable()
        text.encode()
        assert len(text) < 300
        assert str(tmp_path) not in text


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PromptsError, match=r"none\.jsonl does not exist"):
        load_prompts(tmp_path / "none.jsonl")
    with pytest.raises(PromptsError, match="is a folder"):
        load_prompts(tmp_path)
    with pytest.raises(PromptsError, match="cannot be read"):
        load_prompts(Path("bad\0path"))


def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> bytes:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "prompts.jsonl").write_bytes(GOOD)
    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(PromptsError, match="may not be read"):
        load_prompts(tmp_path / "prompts.jsonl")
