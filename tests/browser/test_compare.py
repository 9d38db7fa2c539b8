"""The page of a comparison in a real browser: nothing loaded, nothing complained of, complete with scripts off."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from refract.report.changes import changes
from refract.report.compare import compare
from refract.report.compare_html import changes_html, comparison_html
from refract.report.legacy import read_legacy
from refract.results import Report
from tests.report.test_legacy import document

from .conftest import Opener
from .test_accessible import violations


class Pages(Opener):
    """Opens pages that are made already."""

    def file(self, value: Any) -> str:
        path = self.folder / "page.html"
        path.write_text(value, encoding="utf-8")
        return path.as_uri()


@pytest.fixture
def pages(browser: Any, tmp_path: Path) -> Pages:
    return Pages(browser, tmp_path)


@pytest.fixture(scope="module")
def comparison(many: Report) -> str:
    """Two groups, a report of refract-llm, and a name that bites."""
    evil = "</script><img src=x onerror=alert(1)>"
    other = replace(many, methodology=replace(many.methodology, id="m2", n_predict=32))
    old = read_legacy(document(), name="old.json")
    assert old is not None
    return comparison_html(compare([("a.json", many), (evil, many), ("c.json", other)], [old]))


@pytest.fixture(scope="module")
def changed(many: Report) -> str:
    worse = replace(many, candidates=(replace(many.candidates[2], kv=many.candidates[0].kv),))
    return changes_html(changes(many, worse))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 380])
@pytest.mark.parametrize("which", ["comparison", "changed"])
def test_nothing_is_wrong_with_it(
    pages: Pages, which: str, width: int, scheme: str, request: pytest.FixtureRequest
) -> None:
    with pages(request.getfixturevalue(which), width=width, color_scheme=scheme) as seen:
        assert violations(seen.page) == []
        seen.page.locator("#theme").click()
        seen.page.keyboard.press("?")
        assert seen.page.locator("dialog").is_visible()
        assert seen.trouble == []


def test_it_is_complete_with_scripts_off(pages: Pages, comparison: str) -> None:
    with pages(comparison, java_script_enabled=False) as seen:
        assert seen.count("section[id^=group-]") == 2
        assert seen.page.locator("#legacy td").first.is_visible()
        assert seen.page.locator("#differing").get_by_text("n_predict", exact=True).first.is_visible()
        assert seen.trouble == []
