"""Prompts as values: messages, prompts, and sets of prompts with nested tiers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from refract.errors import PromptsError
from refract.work import Message

TIERS = ("quick", "default", "full")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A conversation that ends with the user's turn. `id` is unique in its set, `tier` one of `TIERS`."""

    id: str
    category: str
    tier: str
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSet:
    """Prompts in the order of their file; `sha256` is of their ids, roles and contents, not of the file's bytes."""

    name: str
    sha256: str
    prompts: tuple[Prompt, ...]

    def tier(self, name: str) -> PromptSet:
        """The prompts of this tier and of those below it (quick < default < full), with a sha256 of their own.

        Raises:
            PromptsError: no such tier, or no prompt in it.
        """
        if name not in TIERS:
            raise PromptsError(f"unknown tier {name!r}", hint=f"tiers are {', '.join(TIERS)}")
        nested = TIERS[: TIERS.index(name) + 1]
        chosen = tuple(p for p in self.prompts if p.tier in nested)
        if not chosen:
            raise PromptsError(f"{self.name} has no prompt in the tier {name}", hint="ask for a larger tier")
        return replace(self, sha256=content_sha256(chosen), prompts=chosen)


def content_sha256(prompts: Sequence[Prompt]) -> str:
    """64 hex digits over ids, roles and contents in order; category, tier and the file's form do not count."""
    content = [[p.id, [[m.role, m.content] for m in p.messages]] for p in prompts]
    return hashlib.sha256(json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()).hexdigest()
