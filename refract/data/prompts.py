"""The loader of the bundled prompts and of a user's own file; the values live in `refract.data.promptset`."""

from __future__ import annotations

from pathlib import Path

from refract.data.prompt_lines import parse_prompts
from refract.data.promptset import TIERS, Prompt, PromptSet, content_sha256
from refract.data.shipped import shipped
from refract.data.textfile import read_text
from refract.errors import PromptsError
from refract.work import Message

__all__ = ["BUNDLED_NAME", "TIERS", "Message", "Prompt", "PromptSet", "load_prompts"]

BUNDLED_NAME = "refract-v1"
LIMIT_MIB = 64


def load_prompts(path: Path | None = None) -> PromptSet:
    """The prompts of a JSONL file, or the bundled ones; contents are kept exactly, blank lines are skipped.

    Raises:
        PromptsError: the file cannot be read, or a line of it is no prompt; the message names file and line.
        SetupError: the bundled file is not where the installation should have put it.
    """
    file = shipped("prompts") / "v1.jsonl" if path is None else path
    text = read_text(file, PromptsError, kind="prompt file (JSON lines)", limit_mib=LIMIT_MIB)
    prompts = parse_prompts(text, file.name)
    name = BUNDLED_NAME if path is None else file.name
    return PromptSet(name=name, sha256=content_sha256(prompts), prompts=prompts)
