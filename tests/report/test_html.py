from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from refract.report.html import to_html
from refract.report.jsonfile import from_json, to_json
from refract.results import Json, Report, Sample

from .builder import report
from .goldens import check
from .strategies import reports

LIGHT = settings(max_examples=25, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
VOID = {"meta", "br"}
EVIL = "</script><img src=x onerror=alert(1)>{{ 7*7 }}{% raw %}\x1b[31m\u202e<b>\"'`"


class Page(HTMLParser):
    """Everything a test asks of a page; fails on tags that do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text: list[str] = []
        self.tags: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.text.append(data)

    def values(self, name: str) -> list[str]:
        return [value for _, key, value in self.attributes if key == name]


def hostile(evil: str) -> Report:
    """The built report with `evil` wherever a model, a prompt or a user can put text."""
    whole = report()
    first = whole.candidates[0]
    axis = first.axes[0]
    side: Json = {"tokens": [1, 2], "texts": [evil, evil], "stop": evil}
    detail: dict[str, Json] = {
        **axis.samples[0].detail,
        "prompt": evil,
        "reference": side,
        "candidate": side,
        "flags": [evil],
    }
    sample = Sample(id=evil, cluster="c", category=evil, numerator=0.5, denominator=1.0, detail=detail)
    axes = (replace(axis, samples=(sample, *axis.samples[1:]), warnings=(evil,), findings=(evil,)), *first.axes[1:])
    odd = replace(first.axes[1], axis=evil, samples=(sample,), series={evil: [{evil: evil}]}, statistics={evil: 1.0})
    candidate = replace(first, kv=evil, axes=(*axes, odd), findings=(evil,))
    return replace(
        whole,
        candidates=(candidate, *whole.candidates[1:]),
        findings=(evil,),
        model=replace(whole.model, name=evil, engine=evil),
        provenance=replace(whole.provenance, command=evil, refract=evil),
    )


def one() -> Report:
    whole = report()
    return replace(whole, candidates=whole.candidates[:1])


def test_golden_files() -> None:
    check("report.html", to_html(report()))
    check("one.html", to_html(one()))


def test_the_same_json_gives_the_same_bytes() -> None:
    assert to_html(from_json(to_json(report()))) == to_html(report())


@pytest.mark.parametrize("value", [report(), one(), hostile(EVIL)], ids=["many", "one", "hostile"])
def test_one_file_without_any_reference_outside_it(value: Report) -> None:
    text = to_html(value)
    page = Page(text)
    assert not {"src", "srcset", "action", "style", "background"} & {name for _, name, _ in page.attributes}
    assert all(link.startswith("#") for link in page.values("href"))
    assert not {"img", "iframe", "link", "object", "embed", "base", "video", "audio", "use", "image"} & set(page.tags)
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    assert style
    assert not re.search(r"url\(|@import|@font-face|http", style[1])
    assert "default-src 'none'" in page.values("content")[1]


def test_hostile_text_is_inert() -> None:
    text = to_html(hostile(EVIL))
    page = Page(text)
    assert text.count("</script>") == 1
    assert "img" not in page.tags
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert "{{ 7*7 }}" in text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)
    assert any(r"\x1b[31m\u202e<b>" in part for part in page.text)


def test_a_megabyte_without_a_line_break_is_cut_visibly() -> None:
    text = to_html(hostile("A" * 1_000_000))
    assert len(text) < 600_000
    assert "more characters not shown" in text


@LIGHT
@given(reports)
def test_any_report_gives_a_well_formed_page(value: Report) -> None:
    page = Page(to_html(value))
    ids = page.values("id")
    assert len(ids) == len(set(ids))


def test_every_link_has_its_target() -> None:
    page = Page(to_html(report()))
    assert {link[1:] for link in page.values("href")} <= set(page.values("id"))


def test_240_prompts_fit_into_3_mb() -> None:
    whole = report(prompts=240, n_predict=128, windows=32)
    assert len(to_html(whole).encode()) < 3_000_000


def test_pictures_have_titles_and_header_cells_a_scope() -> None:
    page = Page(to_html(report()))
    drawn = page.tags.count("svg")
    decorative = page.values("class").count("mini")
    assert page.values("role").count("img") == drawn - decorative
    assert page.tags.count("title") > drawn - decorative
    assert page.tags.count("th") == len(page.values("scope"))


def test_a_missing_score_is_its_reason() -> None:
    text = " ".join(Page(to_html(replace(report(), candidates=report().candidates[2:3]))).text)
    assert "the reference retrieved 2 of 18 needles, 6 are needed" in text
    nothing = " ".join(Page(to_html(replace(report(), candidates=report().candidates[4:5]))).text)
    assert "No score: a composite needs two axes that are ok, none is" in " ".join(nothing.split())


def test_divergences_are_marked_on_both_sides() -> None:
    text = to_html(one())
    different = [s for s in one().candidates[0].axes[0].samples if s.detail["kind"] is not None]
    assert text.count("<mark>") == 2 * len(different)
    assert text.count('data-kind="same"') == 12 - len(different)


def test_cells_without_information_are_marked_as_such() -> None:
    assert '<td class="none">not informative</td>' in to_html(one())


def test_no_candidate() -> None:
    assert "No candidate was measured" in to_html(replace(report(), candidates=(), floor=None))
