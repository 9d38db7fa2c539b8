"""Every prompt's two continuations, cut where they part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from refract.report.plain import clipped, line, visible
from refract.results import AxisResult, Json, Sample

LONGEST = 6000  # characters of one side that are shown
LONGEST_PROMPT = 1200
_KEPT = "\n\t"
_STOPS = {"eos": "ended by itself", "length": "cut at the token limit"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A continuation after the shared beginning: the first token that differs, what follows, and why it ended."""

    first: str
    rest: str
    stop: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptView:
    """One prompt of the trajectory axis. `kind` is same, near-tie, decisive or unknown; `share` is p / L."""

    id: str
    category: str
    kind: str
    share: float
    words: str
    prompt: str
    shared: str
    reference: Side
    candidate: Side
    flags: tuple[str, ...]


def prompt_views(axis: AxisResult | None) -> tuple[PromptView, ...]:
    """The views of all samples that hold both continuations, earliest divergence first, identical ones last."""
    samples = axis.samples if axis is not None else ()
    views = [view for sample in samples if (view := prompt_view(sample)) is not None]
    return tuple(sorted(views, key=lambda view: (view.kind == "same", view.share)))


def prompt_view(sample: Sample) -> PromptView | None:
    """The view of one sample, None where a continuation's token texts are missing."""
    texts = [_texts(sample.detail.get(side)) for side in ("reference", "candidate")]
    if texts[0] is None or texts[1] is None:
        return None
    prefix = _whole(sample.detail.get("prefix"))
    longest = max(1, _whole(sample.detail.get("longest")), len(texts[0]), len(texts[1]))
    kind = sample.detail.get("kind")
    known = kind if isinstance(kind, str) else "same" if sample.detail.get("divergence") is None else "unknown"
    flags = sample.detail.get("flags")
    return PromptView(
        id=line(sample.id, 200),
        category=line(sample.category, 100),
        kind=known if known in ("same", "near-tie", "decisive") else "unknown",
        share=min(1.0, prefix / longest),
        words=_words(prefix, longest, known, sample.detail.get("margin")),
        prompt=shown(str(sample.detail.get("prompt") or ""), LONGEST_PROMPT),
        shared=shown("".join(texts[0][:prefix]), LONGEST),
        reference=_side(texts[0], prefix, sample.detail.get("reference")),
        candidate=_side(texts[1], prefix, sample.detail.get("candidate")),
        flags=tuple(line(str(flag), 100) for flag in flags) if isinstance(flags, list) else (),
    )


def shown(text: str, limit: int) -> str:
    """`text` without control characters but with its line breaks, cut visibly at `limit`."""
    return visible(clipped(text, limit), keep=_KEPT)


def _texts(side: Json) -> list[str] | None:
    if not isinstance(side, Mapping):
        return None
    texts = side.get("texts")
    if not isinstance(texts, list):
        return None
    return [text if isinstance(text, str) else "" for text in texts]


def _whole(value: Json) -> int:
    return max(0, value) if isinstance(value, int) else 0


def _words(prefix: int, longest: int, kind: str, margin: Json) -> str:
    if kind == "same":
        return f"identical over {longest:,} tokens"
    sure = f", margin {margin:.3f}" if isinstance(margin, int | float) and not isinstance(margin, bool) else ""
    return f"parts at token {prefix + 1:,} of {longest:,}{sure}"


def _side(texts: Sequence[str], prefix: int, side: Json) -> Side:
    """The marked token takes along those before its text: pieces of one character are empty but for the last."""
    end = next((i + 1 for i in range(prefix, len(texts)) if texts[i]), prefix)
    stop = side.get("stop") if isinstance(side, Mapping) else None
    first = line("".join(texts[prefix:end]), 200)
    if not first:
        first = "(ends here)" if prefix >= len(texts) or stop == "eos" else "(no text)"
    return Side(
        first=first.replace(" ", "␣") if not first.strip() else first,
        rest=shown("".join(texts[end:]), LONGEST),
        stop=_STOPS.get(str(stop), ""),
    )
