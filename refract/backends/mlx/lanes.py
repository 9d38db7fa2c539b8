"""Lanes: streams of MLX work that run side by side.

MLX runs each CPU stream on a thread of its own, so that as many lanes as cores keep all of them busy. A GPU is one
lane. A lane changes no number: the same operations run in the same order within it. Work of all lanes is evaluated in
one call, since `async_eval` on a CPU returns only when its stream is nearly done.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

import mlx.core as mx

_MOST = 8  # each lane holds a batch of its own in memory
_Result = TypeVar("_Result")
Work = Generator[Any, None, _Result]  # yields what to evaluate next, returns its result


def make_lanes() -> tuple[mx.Stream, ...]:
    """One stream for a GPU, one a core for a CPU."""
    if mx.default_device() == mx.gpu:
        return (mx.default_stream(mx.gpu),)
    return tuple(mx.new_stream(mx.cpu) for _ in range(min(_MOST, os.cpu_count() or 1)))


def in_waves(lanes: Sequence[mx.Stream], works: Iterable[Work[_Result]]) -> Iterator[_Result]:
    """The results of all `works` in order, as many at a time as there are lanes."""
    waiting = iter(works)
    while wave := list(islice(waiting, len(lanes))):
        yield from _together(lanes, wave)


def _together(lanes: Sequence[mx.Stream], works: Sequence[Work[_Result]]) -> list[_Result]:
    results: dict[int, _Result] = {}
    while len(results) < len(works):
        stage = []
        for number, (lane, work) in enumerate(zip(lanes, works, strict=False)):
            if number in results:
                continue
            with mx.stream(lane):
                try:
                    stage.append(next(work))
                except StopIteration as end:
                    results[number] = end.value
        mx.eval(stage)
    return [results[number] for number in range(len(works))]
