"""The documentation says what the program does: generated pages are current, links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from refract.cli import build_parser
from refract.cli.parser import commands_of
from refract.cli.reference import environment_page, help_page

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "llama-cpp-patches" / "README.md"])


@pytest.mark.parametrize(("file", "page"), [("help.md", help_page), ("environment.md", environment_page)])
def test_generated_pages_are_current(file: str, page: object) -> None:
    assert callable(page)
    assert (ROOT / "docs" / file).read_text(encoding="utf-8") == page(build_parser()), "run `make docs`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_of_the_project(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
        if "://" not in link:
            assert (page.parent / link).resolve().is_relative_to(ROOT), link
            assert (page.parent / link).exists(), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_options_in_examples_exist(page: Path) -> None:
    commands = commands_of(build_parser())
    for name, rest in re.findall(
        r"^(?:\$ )?(?:\.venv/bin/)?refract (\w+)(.*)$", page.read_text(encoding="utf-8"), re.M
    ):
        assert name in commands, f"refract {name}"
        for option in re.findall(r"(?<!\S)(--[a-z][a-z-]*)", rest):
            assert option in commands[name]._option_string_actions, f"refract {name} {option}"
