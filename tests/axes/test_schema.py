"""docs/report-schema.md names everything the axes put into a report."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from refract.results import AxisResult, Json

from .test_fooled import measured

PAGE = Path(__file__).parents[2] / "docs" / "report-schema.md"


def keys(value: Json) -> Iterator[str]:
    """The keys of objects, also inside lists."""
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, dict):
            yield from item


def emitted(axis: AxisResult) -> set[str]:
    nested = [key for table in axis.series.values() for key in keys(table)]
    details = [key for sample in axis.samples for key in sample.detail]
    inner = [key for sample in axis.samples for item in sample.detail.values() for key in keys(item)]
    return {*axis.statistics, *axis.series, *nested, *details, *inner}


@pytest.mark.skipif(not PAGE.exists(), reason="the pages are part of the checkout, not of the wheel")
def test_every_name_an_axis_emits_is_on_the_page(tmp_path: Path) -> None:
    sections = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    pages = {section.split("\n", 1)[0]: section for section in sections}
    (result,) = measured(tmp_path, None, "ctk=q8_0,ctv=q8_0").candidates
    for axis in result.axes:
        words = set(re.findall(r"[a-z0-9_]+", pages[axis.axis]))
        assert emitted(axis) <= words, f"{axis.axis}: {sorted(emitted(axis) - words)}"
