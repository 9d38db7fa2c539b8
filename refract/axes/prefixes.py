"""Two continuations of one prompt: where they part, and how sure the reference was there."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from refract.axes.degeneration import Flag, Pair, flags
from refract.axes.tokens import token_texts
from refract.data.prompts import Prompt
from refract.engine import Tokenizer
from refract.results import Json, Sample
from refract.stats.sequences import common_prefix
from refract.work import Distributions, Generation

NEAR_TIE = 0.1  # a reference margin below this is a near-tie, at or above it a decision
_PROMPT_CHARS = 600

Kind = Literal["near-tie", "decisive", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Comparison:
    """p leading tokens in common of L; `divergence` is p, or None for identical continuations."""

    prompt: Prompt
    pair: Pair
    texts: tuple[tuple[str, ...], tuple[str, ...]]  # of reference and candidate, one piece a token
    prefix: int
    longest: int
    margin: float | None
    flags: tuple[Flag, ...]

    @property
    def divergence(self) -> int | None:
        """0-based index of the first token that differs."""
        return self.prefix if self.prefix < self.longest else None

    @property
    def kind(self) -> Kind | None:
        """What the reference's margin makes of the divergence; None when there is none."""
        if self.divergence is None:
            return None
        if self.margin is None:
            return "unknown"
        return "near-tie" if self.margin < NEAR_TIE else "decisive"

    @property
    def exposure(self) -> int:
        """Tokens at which a divergence could happen, the one at which it did included."""
        return self.prefix + (self.divergence is not None)

    def sample(self) -> Sample:
        """p / L with everything a report shows of this prompt."""
        return Sample(
            id=self.prompt.id,
            cluster=self.prompt.id,
            category=self.prompt.category,
            numerator=self.prefix / self.longest,
            denominator=1.0,
            detail={
                "prompt": self.prompt.messages[-1].content[:_PROMPT_CHARS],
                "prefix": self.prefix,
                "longest": self.longest,
                "divergence": self.divergence,
                "margin": self.margin,
                "kind": self.kind,
                "flags": list(self.flags),
                "reference": _side(self.pair.reference, self.texts[0]),
                "candidate": _side(self.pair.candidate, self.texts[1]),
            },
        )


def compare(tokenizer: Tokenizer, prompt: Prompt, reference: Generation, candidate: Generation) -> Comparison:
    """The comparison of two continuations, of which at least one holds a token."""
    texts = [tuple(token_texts(tokenizer, side.tokens)) for side in (reference, candidate)]
    pair = Pair(
        reference=reference,
        candidate=candidate,
        reference_text="".join(texts[0]),
        candidate_text="".join(texts[1]),
    )
    prefix = common_prefix(reference.tokens, candidate.tokens)
    longest = max(len(reference.tokens), len(candidate.tokens))
    return Comparison(
        prompt=prompt,
        pair=pair,
        texts=(texts[0], texts[1]),
        prefix=prefix,
        longest=longest,
        margin=margin_at(reference, prefix) if prefix < longest else None,
        flags=flags(pair),
    )


def margin_at(generation: Generation, index: int) -> float | None:
    """Probability of the token generated at `index` minus that of its strongest rival, at least 0; None if unlisted."""
    listed = generation.listed
    if listed is None or index >= min(len(listed), len(generation.tokens)):
        return None
    return _margin(listed, index, generation.tokens[index])


def _margin(listed: Distributions, index: int, token: int) -> float | None:
    chances = {int(i): math.exp(float(lp)) for i, lp in zip(listed.ids[index], listed.logprobs[index], strict=True)}
    own = chances.pop(token, None)
    if own is None or not chances:
        return None
    margin = own - max(chances.values())
    return max(0.0, margin) if math.isfinite(margin) else None


def _side(generation: Generation, texts: tuple[str, ...]) -> dict[str, Json]:
    return {"tokens": list(generation.tokens), "texts": list(texts), "stop": generation.stop}
