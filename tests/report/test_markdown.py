from __future__ import annotations

import re
from dataclasses import replace

from hypothesis import HealthCheck, Phase, given, settings

from refract.report.markdown import to_markdown
from refract.results import Report

from .builder import report
from .goldens import check
from .strategies import reports

LIGHT = settings(max_examples=25, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
EVIL = "</script><img src=x onerror=alert(1)> | @everyone [a](javascript:x) `x` **b** https://x.example\n# t"


def test_golden_file() -> None:
    check("report.md", to_markdown(report()))


def test_the_verdict_comes_first() -> None:
    whole = report()
    text = to_markdown(replace(whole, candidates=whole.candidates[:1]))
    assert text.startswith("**ctk=q8\\_0,ctv=turbo3: EXCELLENT**")


@LIGHT
@given(reports)
def test_every_table_row_has_as_many_cells_as_its_header(value: Report) -> None:
    counts: list[int] = []
    for line in to_markdown(value).splitlines():
        bars = len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) if line.startswith("|") else 0
        assert not bars or not counts or counts[-1] in (0, bars)
        counts.append(bars)


def test_hostile_text_is_inert() -> None:
    whole = report()
    text = to_markdown(replace(whole, findings=(EVIL,), model=replace(whole.model, name=EVIL)))
    outside = text.replace("<details><summary>", "").replace("</summary>", "").replace("</details>", "")
    assert not re.search(r"(?<!\\)[<`]", outside)
    assert "](" not in outside.replace("\\](", "")
    assert "https://" not in text
