"""Every prompt's two continuations, cut where they part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import escape

from refract.report.plain import clipped, line, visible
from refract.results import AxisResult, Json, Sample

LONGEST = 6000  # characters of one side that are shown
LONGEST_PROMPT = 1200
LIMITS = (LONGEST, 2000, 1000, 500, 250)  # tried in turn until a page's prompts fit
MOST_FLAGS = 10
MARKUP = 1300  # bytes of tags around the texts of one prompt
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


def fitting_views(axes: Sequence[AxisResult | None], room: int) -> list[tuple[PromptView, ...]]:
    """The views of every axis' samples that together take at most `room` bytes of a page.

    Texts are cut shorter where there are too many, and where that is not enough each axis keeps equally many prompts,
    those that part earliest.
    """
    hopeless = MARKUP * sum(len(axis.samples) for axis in axes if axis is not None) > room
    for limit in LIMITS[-1:] if hopeless else LIMITS:
        found = [prompt_views(axis, limit) for axis in axes]
        sizes = [[weight(view) for view in views] for views in found]
        if sum(map(sum, sizes)) <= room:
            return found
    share, kept = room // len(found), []
    for views, each in zip(found, sizes, strict=True):
        left = share
        count = next((i for i, size in enumerate(each) if (left := left - size) < 0), len(views))
        kept.append(views[:count])
    return kept


def weight(view: PromptView) -> int:
    """About how many bytes the view takes in the page."""
    sides = (side for one in (view.reference, view.candidate) for side in (one.first, one.rest))
    texts = (view.id, view.id, view.category, view.category, view.prompt, view.shared, *sides, *view.flags)
    return MARKUP + sum(len(escape(text).encode()) for text in texts)


def prompt_views(axis: AxisResult | None, limit: int = LONGEST) -> tuple[PromptView, ...]:
    """The views of all samples that hold both continuations, earliest divergence first, identical ones last.

    At most `limit` characters of every text are shown.
    """
    samples = axis.samples if axis is not None else ()
    views = [view for sample in samples if (view := prompt_view(sample, limit)) is not None]
    return tuple(sorted(views, key=lambda view: (view.kind == "same", view.share)))


def prompt_view(sample: Sample, limit: int = LONGEST) -> PromptView | None:
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
        prompt=shown(str(sample.detail.get("prompt") or ""), min(limit, LONGEST_PROMPT)),
        shared=shown("".join(texts[0][:prefix]), limit),
        reference=_side(texts[0], prefix, sample.detail.get("reference"), limit),
        candidate=_side(texts[1], prefix, sample.detail.get("candidate"), limit),
        flags=tuple(line(str(flag), 100) for flag in flags[:MOST_FLAGS]) if isinstance(flags, list) else (),
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


def _side(texts: Sequence[str], prefix: int, side: Json, limit: int) -> Side:
    """The marked token takes along those before its text: pieces of one character are empty but for the last."""
    end = next((i + 1 for i in range(prefix, len(texts)) if texts[i]), prefix)
    stop = side.get("stop") if isinstance(side, Mapping) else None
    first = line("".join(texts[prefix:end]), 200)
    if not first:
        first = "(ends here)" if prefix >= len(texts) or stop == "eos" else "(no text)"
    return Side(
        first=first.replace(" ", "␣") if not first.strip() else first,
        rest=shown("".join(texts[end:]), limit),
        stop=_STOPS.get(str(stop), ""),
    )
