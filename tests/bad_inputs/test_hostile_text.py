"""Prompts, answers and names that hold markup, templates, escapes or a megabyte on a line, in all that is written."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from refract.report import from_json, to_json
from refract.testing import FakeEngine
from refract.testing.tokenizer import EOS
from tests.cli import conftest
from tests.cli.conftest import Shell

engine, refract = conftest.engine, conftest.refract  # the fixtures

EVIL = "</script><img src=x onerror=alert(1)>{{ 7*7 }}{% raw %}\x1b[31m\x1b]0;title\x07\u202e|`*<b>&amp;"
FORMS = ("json", "html", "markdown", "model-card", "junit", "badge")
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufeff]")


class Tags(HTMLParser):
    """The names of all elements, and whether any has a handler."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.handlers: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on")]


@pytest.fixture
def outputs(refract: Shell, engine: FakeEngine) -> dict[str, str]:
    """Everything a run prints and writes, where prompts, answers and the model's name are hostile."""
    answer = EVIL.encode()
    engine.respond = lambda prompt: (*answer, EOS)
    name = EVIL.partition("\x1b")[0]  # what cannot be printed is refused in ids and categories
    lines = [json.dumps({"id": f"{n}{name}", "category": f"c{name}", "prompt": f"{n} {EVIL}"}) for n in range(3)]
    (refract.folder / "evil.jsonl").write_text("\n".join(lines))
    return _written(refract, "--prompts", "evil.jsonl", "--model", f"m{EVIL}")


def _written(refract: Shell, *words: str) -> dict[str, str]:
    small = ("--corpus", "corpus.txt", "--chunks", "6", "--ctx", "48", "--n-predict", "200", "--progress", "none")
    files = [part for form in FORMS for part in (f"--{form}" if form in ("junit", "badge") else f"--{form}-out", form)]
    # `=`, because names may begin with anything
    ran = refract("score", *small, *words, "--candidate=ctk=q4_0,ctv=turbo2", *files)
    assert ran.code == 0, ran.err
    found = {form: (refract.folder / form).read_text("utf-8") for form in FORMS}
    compared = refract("compare", "json", "--html-out", "compared")
    assert compared.code == 0, compared.err
    board = refract("leaderboard", "json", "--out", "board")
    assert board.code == 0, board.err
    return found | {
        "text": ran.out,
        "messages": ran.err + compared.err + board.err,
        "comparison": compared.out,
        "compared": (refract.folder / "compared").read_text("utf-8"),
        "board": (refract.folder / "board").read_text("utf-8"),
    }


def test_what_was_said_is_in_the_report(outputs: dict[str, str]) -> None:
    report = from_json(outputs["json"])
    sample = report.candidates[0].axes[0].samples[0]
    reference = sample.detail["reference"]
    assert isinstance(reference, dict)
    assert "".join(map(str, reference["texts"])).startswith("</script><img src=x onerror=alert(1)>{{ 7*7 }}")
    assert to_json(report) == outputs["json"]


def test_pages_hold_it_as_text(outputs: dict[str, str]) -> None:
    for name in ("html", "compared"):
        tags = Tags(outputs[name])
        assert "img" not in tags.names, name
        assert tags.handlers == [], name
        assert outputs[name].count("</script>") <= 1, name
    assert "{{ 7*7 }}" in outputs["html"]
    assert "49" not in re.sub(r"\d{3,}|\d+[.,]\d+", "", outputs["html"].partition("{{ 7*7 }}")[2][:5])


def test_markdown_holds_no_tag_but_its_own(outputs: dict[str, str]) -> None:
    for name in ("markdown", "model-card", "board"):
        raw = re.findall(r"(?<!\\)<[^>]*", outputs[name])
        assert [tag for tag in raw if not re.match(r"<(?:!--|/?(?:details|summary)$)", tag)] == [], name


def test_xml_is_well_formed(outputs: dict[str, str]) -> None:
    for name in ("junit", "badge"):
        root = ElementTree.fromstring(outputs[name])
        assert not [each for each in root.iter() if each.tag.endswith(("script", "img", "}b"))]


def test_nothing_holds_a_control_character(outputs: dict[str, str]) -> None:
    found = {name: CONTROLS.findall(text) for name, text in outputs.items()}
    assert {name: hits for name, hits in found.items() if hits} == {}


def test_a_megabyte_on_one_line(refract: Shell, engine: FakeEngine) -> None:
    """A long answer's beginning is shown and what is left out is said; only the JSON grows with it."""
    engine.max_context = 1 << 22
    long = "A" * 1_000_000
    (refract.folder / "long.jsonl").write_text(
        "".join(json.dumps({"id": f"p{n}", "prompt": f"{n} {long}"}) + "\n" for n in range(2))
    )
    found = _written(refract, "--prompts", "long.jsonl", "--model", "m" * 250)
    sizes = {name: len(text) for name, text in found.items()}
    print(sizes)
    assert max(sizes.values()) < 500_000
    assert max(map(len, found["text"].splitlines())) <= 80


def test_nothing_tells_who_or_where(
    refract: Shell,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    home = tmp_path / "home" / "jane.r.doe"
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USER", "jane.r.doe")
    monkeypatch.setenv("LOGNAME", "jane.r.doe")
    monkeypatch.setattr("socket.gethostname", lambda: "janes-laptop.example.org")
    model = home / "models" / "small.gguf"
    model.parent.mkdir()
    model.write_text("a model of jane.r.doe")
    address = "http://jane.r.doe:hunter2hunter2@janes-laptop.example.org:8080/v1?token=abcdefgh12345678"
    found = _written(
        refract,
        "--prompts",
        "prompts.jsonl",
        f"--model={model}",
        f"--engine-arg=url={address}",
        f"--cache-dir={home}/c",
    )
    for secret in (str(home), str(tmp_path), "jane.r.doe", "janes-laptop", "hunter2hunter2", "abcdefgh12345678"):
        assert [name for name, text in found.items() if name != "messages" and secret in text] == [], secret
