"""Comparison of token sequences: common prefix, edit distance, loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

LOOP_TOKENS = 24  # shorter tails repeat in healthy text: table rules, lists of zeros, refrains


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """A tail that repeats: `tokens[start:]` has period `period` and goes round `repeats` whole times."""

    period: int
    repeats: int
    start: int


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading tokens two sequences share, which is the 0-based index of their first difference."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def edit_distance(a: Sequence[int], b: Sequence[int], *, limit: int | None = None) -> int:
    """Levenshtein distance in tokens, insertions, deletions and substitutions costing 1 each.

    With `limit`, any distance above it is given as limit + 1. Bit-parallel over the shorter sequence, one step per
    token of the longer one (Myers 1999, J. ACM 46:395, in the form of Hyyrö 2003, Nordic J. Computing 10:29).
    """
    shorter, longer = sorted((a, b), key=len)
    distance = size = len(shorter)
    if limit is not None and len(longer) - size > limit:
        return limit + 1
    if size == 0:
        return len(longer)
    where: dict[int, int] = {}
    for i, token in enumerate(shorter):
        where[token] = where.get(token, 0) | 1 << i
    mask, last = (1 << size) - 1, 1 << (size - 1)
    up, down = mask, 0  # bit i: the column rises / falls by 1 from row i to row i + 1
    for token in longer:
        equal = where.get(token, 0)
        diagonal = (((equal & up) + up) ^ up) | equal | down
        right_up, right_down = down | ~(diagonal | up) & mask, up & diagonal
        distance += bool(right_up & last) - bool(right_down & last)
        right_up = right_up << 1 | 1
        up = (right_down << 1 | ~(diagonal | right_up)) & mask
        down = right_up & diagonal & mask
    return distance if limit is None else min(distance, limit + 1)


def ngram_loop(tokens: Sequence[int], *, max_period: int = 32, min_repeats: int = 4) -> Loop | None:
    """The loop a generation ended in, or None: the shortest period repeated `min_repeats` times over ≥ 24 tokens.

    The last round may be cut short, as it is when the budget runs out.
    """
    for period in range(1, max_period + 1):
        need = max(min_repeats * period, LOOP_TOKENS)
        if need > len(tokens):
            continue
        matched = 0
        while matched + period < len(tokens) and tokens[-1 - matched] == tokens[-1 - matched - period]:
            matched += 1
        length = matched + period
        if length >= need:
            return Loop(period=period, repeats=length // period, start=len(tokens) - length)
    return None
