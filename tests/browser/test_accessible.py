"""What axe-core finds wrong with the page, with everything open; nothing may be."""

from __future__ import annotations

from typing import Any

import pytest

from refract.results import Report

from .conftest import OPEN_ALL, Opener, missing


def violations(page: Any) -> list[str]:
    """What breaks WCAG A, AA or axe-core's best practices: rule, impact and the first places."""
    try:
        from axe_playwright_python.sync_playwright import Axe
    except ImportError:
        missing("no axe-core: pip install axe-playwright-python")
    found = Axe().run(page).response["violations"]
    return [
        f"{each['impact']} {each['id']}: {each['help']}: {[node['html'][:160] for node in each['nodes'][:3]]}"
        for each in found
    ]


@pytest.mark.parametrize("width", [1280, 380])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("which", ["many", "one"])
def test_axe_finds_nothing(opened: Opener, which: str, scheme: str, width: int, request: pytest.FixtureRequest) -> None:
    with opened(request.getfixturevalue(which), color_scheme=scheme, width=width) as seen:
        seen(OPEN_ALL)
        assert violations(seen.page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_the_help(opened: Opener, one: Report, scheme: str) -> None:
    with opened(one, color_scheme=scheme) as seen:
        seen.page.keyboard.press("?")
        assert seen.page.locator("dialog").is_visible()
        assert violations(seen.page) == []


def test_colour_is_never_alone(opened: Opener, many: Report) -> None:
    """With every colour taken away by the reader's system, bands, kinds and hatched cells still differ in words."""
    with opened(many, forced_colors="active") as seen:
        seen(OPEN_ALL)
        words = {"identical", "near-tie", "decisive"}
        assert set(seen.page.locator(".prompt .kind").all_inner_texts()) == words
        assert "not informative" in seen.page.locator(".heat .none").first.inner_text()
        assert all(text.strip() for text in seen.page.locator(".band").all_inner_texts())
        dashes = seen("[...document.querySelectorAll('.floor-line')].map(p => getComputedStyle(p).strokeDasharray)")
        assert set(dashes) == {"5px, 4px"}
