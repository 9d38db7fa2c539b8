"""Theme, filters, keys and deep links."""

from __future__ import annotations

from refract.results import Report

from .conftest import Opener, Seen

PAPER = "getComputedStyle(document.body).backgroundColor"
FOCUS = "(document.activeElement.closest('.prompt') || {}).id"
DARK, LIGHT = "rgb(21, 23, 26)", "rgb(253, 253, 252)"


def shown(seen: Seen) -> list[str]:
    """The ids of the first candidate's prompts that are not filtered out."""
    ids = seen("[...document.querySelectorAll('#c1-prompts .prompt:not([hidden])')].map(p => p.id)")
    assert isinstance(ids, list)
    return ids


def test_the_theme_follows_the_system_until_it_is_chosen(opened: Opener, one: Report) -> None:
    with opened(one, color_scheme="dark") as seen:
        button = seen.page.locator("#theme")
        assert (seen(PAPER), button.inner_text()) == (DARK, "Theme: auto")
        button.click()
        assert (seen(PAPER), button.inner_text()) == (LIGHT, "Theme: light")
        seen.page.reload()
        assert (seen(PAPER), button.inner_text()) == (LIGHT, "Theme: light")
        button.click()
        assert (seen(PAPER), button.inner_text()) == (DARK, "Theme: dark")
        button.click()
        assert button.inner_text() == "Theme: auto"
        seen.page.emulate_media(color_scheme="light")
        assert seen(PAPER) == LIGHT
        assert seen.trouble == []


def test_filters_keep_what_fits_and_count_it(opened: Opener, one: Report) -> None:
    samples = one.candidates[0].axes[0].samples
    decisive = {f"c1-{s.id}" for s in samples if s.detail["kind"] == "decisive"}
    different = {f"c1-{s.id}" for s in samples if s.detail["kind"] is not None}
    code = {f"c1-{s.id}" for s in samples if s.category == "code"}
    with opened(one) as seen:
        filters = seen.page.locator("#c1-prompts .filters")
        kind, category, flag = (filters.locator(f"[data-filter={name}]") for name in ("kind", "category", "flag"))
        assert len(shown(seen)) == len(samples) == 12
        kind.select_option("different")
        assert set(shown(seen)) == different
        kind.select_option("decisive")
        assert set(shown(seen)) == decisive
        assert filters.locator("output").inner_text() == f"{len(decisive)} shown"
        kind.select_option("")
        category.select_option("code")
        assert set(shown(seen)) == code
        kind.select_option("different")
        assert set(shown(seen)) == code & different
        category.select_option("")
        kind.select_option("")
        flag.select_option("loop")
        assert shown(seen) == ["c1-p003"]


def test_open_all_and_close_all(opened: Opener, one: Report) -> None:
    with opened(one) as seen:
        button = seen.page.get_by_role("button", name="Open all")
        button.click()
        assert seen.count("#c1-prompts .prompt[open]") == 12
        seen.page.get_by_role("button", name="Close all").click()
        assert seen.count("#c1-prompts .prompt[open]") == 0


def test_j_and_k_walk_the_prompts_and_enter_opens_one(opened: Opener, many: Report) -> None:
    with opened(many) as seen:
        keys = seen.page.keyboard
        keys.press("j")
        order = shown(seen)
        assert seen(FOCUS) == order[0], "the folded list is opened and its first prompt has the focus"
        keys.press("j")
        keys.press("j")
        assert seen(FOCUS) == order[2]
        keys.press("k")
        assert seen(FOCUS) == order[1]
        keys.press("Enter")
        assert seen.page.locator(f"[id='{order[1]}'] mark").first.is_visible()
        seen.until(f"location.hash === '#{order[1]}'")
        for _ in range(20):
            keys.press("k")
        assert seen(FOCUS) == order[0]
        assert seen.trouble == []


def test_f_goes_to_the_filters_and_keys_rest_there(opened: Opener, many: Report) -> None:
    with opened(many) as seen:
        seen.page.keyboard.press("f")
        assert seen("document.activeElement.dataset.filter") == "kind"
        seen.page.keyboard.press("j")
        assert seen("document.activeElement.dataset.filter") == "kind"


def test_question_mark_shows_the_keys(opened: Opener, one: Report) -> None:
    with opened(one) as seen:
        dialog = seen.page.locator("dialog")
        assert not dialog.is_visible()
        seen.page.keyboard.press("?")
        assert dialog.is_visible()
        seen.page.keyboard.press("Escape")
        assert not dialog.is_visible()
        seen.page.keyboard.press("?")
        seen.page.keyboard.press("?")
        assert not dialog.is_visible()


def test_a_link_opens_the_prompt_it_names(opened: Opener, many: Report) -> None:
    with opened(many, "#c3-p005") as seen:
        prompt = seen.page.locator("[id='c3-p005']")
        assert prompt.get_attribute("open") is not None
        assert seen.page.locator("#c3-prompts").get_attribute("open") is not None
        top = "document.getElementById('c3-p005').getBoundingClientRect().top"
        seen.until(f"{top} >= 0 && {top} < 900")


def test_a_link_shows_what_a_filter_hides(opened: Opener, one: Report) -> None:
    with opened(one) as seen:
        seen.page.locator("#c1-prompts [data-filter=category]").select_option("code")
        assert not seen.page.locator("[id='c1-p001']").is_visible()
        seen("location.hash = '#c1-p001'")
        seen.until("document.getElementById('c1-p001').open")
        assert seen.page.locator("[id='c1-p001']").is_visible()


def test_links_of_the_summary_open_their_axis(opened: Opener, many: Report) -> None:
    with opened(many) as seen:
        seen.page.locator(".axes a").first.click()
        seen.until("document.getElementById('c1-axis-trajectory').open")
        assert seen.page.locator("#c1-axis-trajectory figure").first.is_visible()
