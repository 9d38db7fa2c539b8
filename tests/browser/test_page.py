"""The page as a reader opens it: from a file, with nothing else there."""

from __future__ import annotations

import re

import pytest

from refract.results import Report
from tests.report.builder import report
from tests.report.test_html import EVIL, hostile

from .conftest import OPEN_ALL, Opener


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("which", ["many", "one"])
def test_opens_without_a_message_an_error_or_a_request(
    opened: Opener, which: str, scheme: str, request: pytest.FixtureRequest
) -> None:
    with opened(request.getfixturevalue(which), color_scheme=scheme) as seen:
        seen(OPEN_ALL)
        assert re.match(r"ctk=q8_0,ctv=turbo[34]\s+✓ EXCELLENT", seen.page.locator("h1").inner_text())
        assert "ctv=turbo3: EXCELLENT, 9" in seen.page.title() or "5 candidates" in seen.page.title()
        assert seen.trouble == []


def test_the_verdict_is_on_the_first_screen(opened: Opener, one: Report) -> None:
    with opened(one, width=380) as seen:
        score = one.candidates[0].composite.score
        assert score is not None
        figures = f"{score.value:.1f}", f"[{score.low:.1f}, {score.high:.1f}]"
        words = ("ctk=q8_0,ctv=turbo3", "EXCELLENT", *figures, "2.8× smaller KV")
        text = seen.page.locator(".hero").inner_text()
        assert [word for word in words if word not in text] == []
        assert seen.page.locator(".hero .size").bounding_box()["y"] < 500


def test_hostile_text_does_nothing(opened: Opener) -> None:
    with opened(hostile(EVIL)) as seen:
        seen(OPEN_ALL)
        seen.page.wait_for_timeout(100)
        assert seen.count("img") == 0
        assert seen.count("script") == 1
        assert "{{ 7*7 }}" in seen.page.locator("main").inner_text()
        assert seen.trouble == []


def test_a_megabyte_on_one_line_stays_within_the_page(opened: Opener) -> None:
    with opened(hostile("A" * 1_000_000)) as seen:
        seen(OPEN_ALL)
        assert seen("document.documentElement.scrollWidth") <= 1280
        assert seen.trouble == []


@pytest.mark.parametrize("width", [320, 380, 768, 1280])
@pytest.mark.parametrize("which", ["many", "one"])
def test_nothing_sticks_out_to_the_side(opened: Opener, which: str, width: int, request: pytest.FixtureRequest) -> None:
    with opened(request.getfixturevalue(which), width=width) as seen:
        seen(OPEN_ALL)
        assert seen("document.documentElement.scrollWidth") <= width


def test_on_a_narrow_screen_axes_are_whole(opened: Opener, many: Report) -> None:
    with opened(many, width=380) as seen:
        rows = seen.page.locator(".axes").first.locator("tbody tr")
        assert rows.count() == 4
        for cell in rows.first.locator("td, th").all():
            box = cell.bounding_box()
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= 380
        assert "Floor" in seen("getComputedStyle(document.querySelector('[data-name]'), '::before').content")


def test_without_scripts_the_page_says_the_same(opened: Opener, many: Report) -> None:
    texts = []
    for scripts in (True, False):
        with opened(many, java_script_enabled=scripts) as seen:
            texts.append(seen.page.locator("main").text_content())
            assert seen.trouble == []
            assert seen.page.locator("#theme").is_visible() is scripts
            if scripts:
                continue
            assert not seen.page.locator(".filters").first.is_visible()
            seen.page.locator("#c1-prompts > summary").click()
            prompt = seen.page.locator("#c1-prompts .prompt").first
            prompt.locator("summary").click()
            assert prompt.locator("mark").first.is_visible()
            assert prompt.locator(".sides h4").all_inner_texts() == ["Reference", "Candidate"]
    count = "12 shown"
    assert texts[0].replace(count, "") == texts[1].replace(count, "")


def test_printed_on_white_with_every_axis_open(opened: Opener, many: Report) -> None:
    with opened(many, color_scheme="dark") as seen:
        seen(f"localStorage.setItem('refract-theme', 'dark'); {OPEN_ALL.replace('true', 'false')}")
        seen.page.reload()
        seen.page.emulate_media(media="print")
        style = "getComputedStyle(document.body)"
        assert seen(f"{style}.backgroundColor") == "rgb(255, 255, 255)"
        assert seen(f"{style}.color") == "rgb(28, 30, 33)"
        assert seen.page.locator("#c1-axis-kld .stats").is_visible()
        assert not seen.page.locator(".top").is_visible()


def test_240_prompts_open_in_under_a_second(opened: Opener) -> None:
    large = report(prompts=240, n_predict=128, windows=32)
    with opened(large) as seen:
        took = []
        for _ in range(3):
            seen.page.reload()
            took.append(seen("performance.getEntriesByType('navigation')[0].loadEventEnd"))
        print(f"five candidates of 240 prompts open in {min(took):.0f} ms")
        assert seen.count(".prompt") == 4 * 240
        assert min(took) < 1000
