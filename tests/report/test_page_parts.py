"""Charts, prompts and tables of the page, each from values written by hand."""

from __future__ import annotations

import re
import time
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refract.report.charts import depth_chart, depths
from refract.report.grids import series_grids
from refract.report.html import to_html
from refract.report.pages import settings_rows, tied_words
from refract.report.prompts import MARKUP, fitting_views, prompt_views, weight
from refract.report.ranking import Ranked, Ranking
from refract.results import AxisResult, CandidateResult, Json, Report

from .builder import report
from .strategies import json_values


def axis(name: str, **series: Json) -> AxisResult:
    """An axis without a score that has these series."""
    return AxisResult(
        axis=name, status="failed", score=None, reason="-", link="100*exp(-r)", unit="window", series=series
    )


def row(depth: float, value: float, low: float | None = None, high: float | None = None) -> Json:
    return {"depth": depth, "windows": 4, "mean_kl_nats": {"value": value, "low": low, "high": high}}


def trajectories(value: Report) -> list[AxisResult]:
    return [candidate.axes[0] for candidate in value.candidates]


def test_depths_are_sorted_and_a_row_without_interval_stands_for_itself() -> None:
    found = depths(axis("kld", depths=[row(4096, 0.2, 0.1, 0.3), row(512, 0.05), {"depth": 1}, 7, row(0, 1.0)]))
    assert found == [(512.0, 0.05, 0.05, 0.05), (4096.0, 0.2, 0.1, 0.3)]


def test_divergence_by_depth_is_drawn_with_intervals_and_floor() -> None:
    deep = axis("kld", depths=[row(512, 0.05, 0.04, 0.06), row(4096, 0.2, 0.1, 0.3)])
    drawn = depth_chart(deep, None)
    assert drawn.count("<circle") == drawn.count('class="interval"') == 2
    assert "after 4,096 tokens: 0.200 nats [0.100, 0.300]" in drawn
    assert "floor-line" not in drawn
    beside = depth_chart(deep, axis("kld", depths=[row(512, 0.001), row(4096, 0.002)]))
    assert "floor-line" in beside
    first, last = re.findall(r'cy="([\d.]+)"', drawn)
    assert float(last) < float(first), "larger is higher up"
    assert depth_chart(axis("kld", depths=[row(512, 0.05)]), None) == ""


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.dictionaries(st.sampled_from(["depths", "kl_tail", "survival", "trajectory_kl", "cells"]), json_values))
def test_any_series_under_a_known_name_gives_a_page(series: dict[str, Json]) -> None:
    whole = report()
    candidate = whole.candidates[0]
    odd = tuple(replace(one, series=series) for one in candidate.axes)
    text = to_html(replace(whole, candidates=(replace(candidate, axes=odd),), floor=replace(candidate, axes=odd)))
    assert text.endswith("</html>")


def test_a_caption_names_the_floor_only_where_it_is_drawn() -> None:
    text = to_html(replace(report(), candidates=report().candidates[:1]))
    assert "Kaplan–Meier, with its 95 % band. The dashed line is the floor" in text
    assert "at one position is large. The floor lies below everything drawn here." in text
    without = to_html(replace(report(), candidates=report().candidates[:1], floor=None))
    assert "the floor: the reference against itself" not in without


def test_few_prompts_are_shown_whole() -> None:
    axes = trajectories(report())
    assert fitting_views(axes, 10_000_000) == [prompt_views(one) for one in axes]
    assert fitting_views([], 0) == []
    assert fitting_views([None], 100) == [()]


def test_many_prompts_are_cut_shorter_then_left_out_equally() -> None:
    axes = trajectories(report(prompts=20, n_predict=800))[:2]
    whole = sum(weight(view) for views in fitting_views(axes, 10**9) for view in views)
    shorter = fitting_views(axes, whole - 30_000)
    assert [len(views) for views in shorter] == [20, 20]
    assert any("more characters not shown" in view.reference.rest for views in shorter for view in views)
    fewer = fitting_views(axes, 40 * MARKUP // 2)
    assert [len(views) for views in fewer] == [len(fewer[0])] * 2
    assert 0 < len(fewer[0]) < 20
    assert [view.id for view in fewer[0]] == [view.id for view in prompt_views(axes[0])[: len(fewer[0])]]


@given(st.integers(0, 200_000))
@settings(max_examples=30, deadline=None)
def test_the_prompts_never_take_more_room_than_there_is(room: int) -> None:
    views = fitting_views(trajectories(report()), room)
    assert sum(weight(view) for each in views for view in each) <= room


def test_forty_candidates_of_240_prompts_stay_below_3_mb() -> None:
    """Real ids are longer than the builder's, and real tokens too: four candidates stand in for ten such each."""
    whole = report(prompts=240, n_predict=128, windows=8)
    scored = [each for each in whole.candidates if each.axes[0].samples]
    candidates = tuple(replace(scored[i % len(scored)], kv=f"ctk=q8_0,ctv=turbo3,v.seed={i}") for i in range(40))
    text = to_html(replace(whole, candidates=candidates))
    assert len(text.encode()) < 3_000_000
    assert "more prompts are in the JSON report only." in text


def test_a_run_of_240_prompts_renders_in_under_a_second() -> None:
    whole = report(prompts=240, n_predict=128, windows=32)
    one = replace(whole, candidates=whole.candidates[:1])
    to_html(replace(one, candidates=()))
    start = time.process_time()
    text = to_html(one)
    took = time.process_time() - start
    print(f"240 prompts: {took:.2f} s of CPU, {len(text.encode()):,} bytes")
    assert took < 1.0


@pytest.mark.parametrize("count", [1, 5])
def test_the_title_is_the_verdict_or_how_many_there_are(count: int) -> None:
    text = to_html(replace(report(), candidates=report().candidates[:count]))
    title = re.search(r"<title>(.*?)</title>", text)
    assert title
    assert title[1].startswith("ctk=q8_0,ctv=turbo3: EXCELLENT, 9" if count == 1 else "5 candidates")
    assert title[1].endswith("SmolLM2-135M-Instruct – REFRACT")


def test_those_who_share_the_first_rank_are_named() -> None:
    def ranked(kv: str, rank: int) -> Ranked:
        candidate: CandidateResult = replace(report().candidates[0], kv=kv)
        return Ranked(candidate=candidate, score=None, rank=rank)

    assert tied_words(Ranking(basis=("kld",), rows=(ranked("a", 1), ranked("b", 2)))) == ""
    tied = Ranking(basis=("kld",), rows=(ranked("a", 1), ranked("b", 1), ranked("c", 3)))
    assert tied_words(tied) == "a, b share the first rank: measured here, they cannot be told apart"


def test_settings_are_part_of_the_provenance() -> None:
    rows = dict(settings_rows(report()))
    assert rows["settings, kld"] == "chunks: 8, ctx: 512"
    assert rows["model details"] == "layers: 30, head_dim: 64, weights: q4_1"
    assert "<dt>settings, kld</dt><dd>chunks: 8, ctx: 512</dd>" in to_html(report())


def test_columns_of_words_and_of_numbers_are_told_apart() -> None:
    (grid,) = series_grids(axis("kld", table=[{"name": "a", "count": 1, "why": "x"}, {"name": "b", "count": None}]))
    assert grid.figures == (False, True, False)
    assert grid.rows == (("a", "1", "x"), ("b", "–", "–"))
