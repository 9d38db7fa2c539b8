"""One line of a prompt file to one `Prompt`, or one line that says what is wrong with it."""

from __future__ import annotations

import difflib
import json
import unicodedata
from collections.abc import Iterable
from typing import Any, NoReturn

from refract.data.promptset import TIERS, Prompt
from refract.errors import PromptsError
from refract.work import Message

ROLES = ("system", "user", "assistant")

_PROMPT_KEYS = ("id", "category", "tier", "messages", "prompt")
_MESSAGE_KEYS = ("role", "content")
_UNPRINTABLE = ("Cc", "Zl", "Zp")
_SHAPE = 'one object a line: {"prompt": "text"} or {"messages": [{"role": "user", "content": "text"}]}'


def parse_prompts(text: str, file: str) -> tuple[Prompt, ...]:
    """The prompts of a JSONL text; lines end with LF or CRLF, blank ones are skipped.

    Raises:
        PromptsError: a line is no prompt, or an id occurs twice.
    """
    lines_by_id: dict[str, int] = {}
    prompts: list[Prompt] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip(" \t\r"):
            continue
        at = _Place(file, number)
        prompt = _prompt(_object(line, at), at)
        if prompt.id in lines_by_id:
            at.refuse(f"id {_show(prompt.id)} is already that of line {lines_by_id[prompt.id]}", "ids must be unique")
        lines_by_id[prompt.id] = number
        prompts.append(prompt)
    return tuple(prompts)


class _Place:
    """A file and a line, for messages."""

    def __init__(self, file: str, line: int) -> None:
        self.file, self.line = file, line

    def refuse(self, problem: str, hint: str) -> NoReturn:
        raise PromptsError(f"{self.file} line {self.line}: {problem}", hint=hint)


def _object(line: str, at: _Place) -> dict[str, Any]:
    """The line as a JSON object in which no key is named twice."""
    if line.lstrip().startswith("["):
        at.refuse("expected a JSON object, found an array", f"put each element on a line of its own; {_SHAPE}")
    try:
        value = json.loads(line, object_pairs_hook=lambda pairs: _unique(pairs, at))
    except json.JSONDecodeError as failure:
        at.refuse(f"not a JSON object: {failure.msg} at character {failure.colno}", _SHAPE)
    except (ValueError, RecursionError):
        at.refuse("not a JSON object that makes sense here: a number or a nesting without end", _SHAPE)
    if not isinstance(value, dict):
        at.refuse(f"expected a JSON object, found {_kind(value)}", _SHAPE)
    return value


def _unique(pairs: list[tuple[str, Any]], at: _Place) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        at.refuse(f"the key {_show(twice)} occurs twice in one object", "keep one of them")
    return found


def _prompt(value: dict[str, Any], at: _Place) -> Prompt:
    _known_keys(value, _PROMPT_KEYS, at)
    return Prompt(
        id=_label(value, "id", f"line-{at.line}", at) or at.refuse("id is empty", "name it, or leave the key out"),
        category=_label(value, "category", "", at),
        tier=_choice(_label(value, "tier", TIERS[0], at), TIERS, "tier", at),
        messages=_messages(value, at),
    )


def _messages(value: dict[str, Any], at: _Place) -> tuple[Message, ...]:
    if ("messages" in value) == ("prompt" in value):
        found = "both" if "prompt" in value else "neither"
        at.refuse(f'expected either "messages" or "prompt", found {found}', _SHAPE)
    if "prompt" in value:
        return (Message(role="user", content=_content(value["prompt"], "prompt", at)),)
    listed = value["messages"]
    if not isinstance(listed, list) or not listed:
        at.refuse(f"messages: expected a list with at least one message, found {_kind(listed)}", _SHAPE)
    messages = tuple(_message(item, n, at) for n, item in enumerate(listed, start=1))
    for n, message in enumerate(messages[1:], start=2):
        if message.role == "system":
            at.refuse(f"message {n}: a system message may only come first", "move it to the front")
    if messages[-1].role != "user":
        at.refuse(
            f"the last message is from {messages[-1].role}, expected user",
            "the model answers the last message; drop what follows the user's turn",
        )
    return messages


def _message(item: Any, n: int, at: _Place) -> Message:
    if not isinstance(item, dict):
        at.refuse(f"message {n}: expected an object with role and content, found {_kind(item)}", _SHAPE)
    _known_keys(item, _MESSAGE_KEYS, at)
    for key in _MESSAGE_KEYS:
        if key not in item:
            at.refuse(f"message {n}: the key {key} is missing", _SHAPE)
    if not isinstance(item["role"], str):
        at.refuse(f"message {n}: role: expected text, found {_kind(item['role'])}", f"roles are {', '.join(ROLES)}")
    return Message(
        role=_choice(item["role"], ROLES, f"message {n}: role", at),
        content=_content(item["content"], f"message {n}: content", at),
    )


def _content(value: Any, what: str, at: _Place) -> str:
    """The text, untouched."""
    if not isinstance(value, str):
        at.refuse(f"{what}: expected text, found {_kind(value)}", "only plain text is supported, no images or parts")
    if not value or value.isspace():
        at.refuse(f"{what} is empty, expected text", "remove the line, or write what the model shall answer")
    if "\0" in value:
        at.refuse(
            f"{what} holds a NUL (\\u0000) at character {value.index(chr(0))}",
            "remove it: engines written in C end the text there, so two engines would get different prompts",
        )
    _no_surrogates(value, what, at)
    return value


def _label(value: dict[str, Any], key: str, default: str, at: _Place) -> str:
    """A short text that reports can print on one line."""
    label = value.get(key, default)
    if not isinstance(label, str):
        at.refuse(f"{key}: expected text, found {_kind(label)}", f'write it in quotes: "{key}": "…"')
    _no_surrogates(label, key, at)
    if any(unicodedata.category(c) in _UNPRINTABLE for c in label):
        at.refuse(f"{key} {_show(label)} holds characters that cannot be printed on one line", "use plain words")
    return label


def _no_surrogates(value: str, what: str, at: _Place) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as failure:
        at.refuse(
            f"{what} holds the lone surrogate \\u{ord(value[failure.start]):04x} at character {failure.start}",
            "write the character itself in UTF-8, or both halves of the escape",
        )


def _choice(value: str, choices: Iterable[str], what: str, at: _Place) -> str:
    names = tuple(choices)
    if value in names:
        return value
    return at.refuse(f"{what} {_show(value)} is unknown, expected {', '.join(names)}", _suggestion(value, names))


def _known_keys(value: dict[str, Any], known: tuple[str, ...], at: _Place) -> None:
    for key in value:
        if key not in known:
            at.refuse(f"unknown key {_show(key)}, expected {', '.join(known)}", _suggestion(key, known))


def _suggestion(found: str, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(found.lower(), known, n=1)
    return f"did you mean {close[0]}?" if close else f"use one of {', '.join(known)}"


def _show(text: str) -> str:
    """The text quoted, on one line, with everything unusual escaped, and not too long."""
    return ascii(text if len(text) <= 40 else text[:37] + "...")


def _kind(value: Any) -> str:
    """What JSON calls this value."""
    if isinstance(value, list):
        return "an array" if value else "an empty array"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, dict):
        return "an object"
    return "text" if isinstance(value, str) else "a number"
