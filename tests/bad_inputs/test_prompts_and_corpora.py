"""Prompt files and corpora that cannot be read or cannot mean anything."""

from __future__ import annotations

import pytest

from .conftest import Bad
from .files import unreadable

SHAPE = '{"prompt": "text"}'
PROMPTS = {
    "p-empty.jsonl": ("is empty, expected a prompt file", "check the path"),
    "p-blank.jsonl": ("is empty, expected a prompt file", "check the path"),
    "p-array.jsonl": ("line 1: expected a JSON object, found an array", "a line of its own"),
    "p-text.jsonl": ("line 1: not a JSON object", SHAPE),
    "p-number.jsonl": ("line 1: expected a JSON object, found a number", SHAPE),
    "p-cut.jsonl": ("line 2: not a JSON object: Unterminated string", SHAPE),
    "p-two.jsonl": ("line 1: not a JSON object: Extra data at character 41", SHAPE),
    "p-nothing.jsonl": ('expected either "messages" or "prompt", found neither', SHAPE),
    "p-both.jsonl": ('expected either "messages" or "prompt", found both', SHAPE),
    "p-typo.jsonl": ("unknown key 'promt'", "did you mean prompt?"),
    "p-null.jsonl": ("prompt: expected text, found null", "only plain text"),
    "p-list.jsonl": ("prompt: expected text, found an array", "only plain text"),
    "p-blank-prompt.jsonl": ("prompt is empty", "remove the line"),
    "p-role.jsonl": ("message 1: role 'robot' is unknown", "use one of system, user, assistant"),
    "p-no-messages.jsonl": ("expected a list with at least one message", SHAPE),
    "p-no-user.jsonl": ("the last message is from system, expected user", "the user's turn"),
    "p-message-key.jsonl": ("unknown key 'name', expected role, content", "use one of role, content"),
    "p-same-id.jsonl": ("line 2: id 'x' is already that of line 1", "unique"),
    "p-twice.jsonl": ("the key 'prompt' occurs twice", "keep one"),
    "p-tier.jsonl": ("tier 'huge' is unknown", "quick, default, full"),
    "p-surrogate.jsonl": (r"the lone surrogate \ud800 at character 2", "both halves"),
    "p-latin1.jsonl": ("line 1: byte 14 (0xfc) is not UTF-8", "iconv"),
    "p-utf16.jsonl": ("is UTF-16", "UTF-8"),
    "p-nul.jsonl": ("is binary (NUL at byte 13)", "unpacked"),
    "p-gzip.jsonl": ("is binary (NUL at byte 3)", "unpacked"),
    "p-deep.jsonl": ("a nesting without end", SHAPE),
    "p-digits.jsonl": ("a number or a nesting without end", SHAPE),
    "loop.jsonl": ("Too many levels of symbolic links", "check the path"),
    "dangling.jsonl": ("does not exist", "check the path"),
    "absent.jsonl": ("does not exist", "check the path"),
    "kept.json/x.jsonl": ("x.jsonl cannot be read: Not a directory", "check the path"),
    "empty-folder": ("is a folder", "the file inside"),
    "/dev/zero": ("zero does not end, expected a prompt file (JSON lines) of at most 64 MiB", "a plain file"),
}
CORPORA = {
    "c-empty.txt": ("is empty", "check the path"),
    "c-spaces.txt": ("is empty", "check the path"),
    "c-ten.txt": ("is too short: 288 tokens needed, 11 found", "lower --chunks or --ctx"),
    "c-short.txt": ("is too short: 288 tokens needed", "lower --chunks or --ctx"),
    "c-binary.txt": ("is binary (NUL at byte 0)", "unpacked"),
    "c-latin1.txt": ("line 1: byte 14 (0xe4) is not UTF-8", "iconv"),
    "c-utf16.txt": ("is UTF-16", "UTF-8"),
    "c-none": ("holds no .txt file", "name a text file"),
    "c-one-empty": ("b.txt is empty", "check the path"),
    "empty-folder": ("holds no .txt file", "name a text file"),
    "loop.txt": ("Too many levels of symbolic links", "check the path"),
    "dangling.txt": ("does not exist", "check the path"),
    "c" * 300: ("cannot be read: File name too long", "check the path"),
}


@pytest.mark.parametrize(("name", "expected"), PROMPTS.items(), ids=PROMPTS)
def test_prompts_refused(bad: Bad, name: str, expected: tuple[str, str]) -> None:
    bad.refuses("score", *bad.shell.small, "--prompts", name, code=2, line=expected[0], hint=expected[1])


@pytest.mark.parametrize(("name", "expected"), CORPORA.items(), ids=[name[:20] for name in CORPORA])
def test_corpus_refused(bad: Bad, name: str, expected: tuple[str, str]) -> None:
    bad.refuses("score", *bad.shell.small, "--corpus", name, code=2, line=expected[0], hint=expected[1])


@pytest.mark.usefixtures("no_root_powers")
@pytest.mark.parametrize(("option", "name"), [("--prompts", "prompts.jsonl"), ("--corpus", "corpus.txt")])
def test_without_the_right_to_read(bad: Bad, option: str, name: str) -> None:
    unreadable(bad.folder, name)
    bad.refuses(
        "score", *bad.shell.small, option, name, code=2, line=f"{name} may not be read", hint=f"chmod +r {name}"
    )


@pytest.mark.usefixtures("no_root_powers")
def test_a_folder_without_the_right_to_look_into_it(bad: Bad) -> None:
    (bad.folder / "c-none").chmod(0)
    try:
        ran = bad.shell("score", *bad.shell.small, "--corpus", "c-none")
    finally:
        (bad.folder / "c-none").chmod(0o755)
    assert ran.code == 2
    assert ran.err == "refract: c-none may not be read by this user\n  hint: allow reading it: chmod +rx c-none\n"
