"""Pages of reports in a real Chromium, driven by playwright; a test skips with the reason where there is none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from refract.report.html import to_html
from refract.results import Report
from tests.report.builder import report

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
OPEN_ALL = "document.querySelectorAll('details').forEach(part => { part.open = true; })"


def missing(reason: str) -> Any:
    """Skips the test, or fails it where REFRACT_REQUIRE_BROWSER says that a browser has to be there."""
    if os.environ.get("REFRACT_REQUIRE_BROWSER"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One headless Chromium for all tests."""
    found = os.environ.get("REFRACT_TEST_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        missing("no chromium on this machine: apt-get install chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("no playwright: pip install playwright axe-playwright-python")
    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@dataclass
class Seen:
    """An open page and all that a reader should never meet: console messages, errors, requests, dialogs."""

    page: Any
    trouble: list[str] = field(default_factory=list)

    def __call__(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        return self.page.evaluate(script)

    def until(self, script: str) -> None:
        """Waits until a JavaScript expression is true. Playwright's own way needs eval, which the page forbids."""
        for _ in range(100):
            if self.page.evaluate(script):
                return
            self.page.wait_for_timeout(20)
        pytest.fail(f"never came true: {script}")

    def count(self, selector: str) -> int:
        """How many elements there are."""
        found = self.page.locator(selector).count()
        assert isinstance(found, int)
        return found


class Opener:
    """Opens reports from files, each in a fresh profile."""

    def __init__(self, browser: Any, folder: Path) -> None:
        self.browser = browser
        self.folder = folder

    def file(self, value: Report) -> str:
        """The address of the report's page."""
        path = self.folder / "report.html"
        path.write_text(to_html(value), encoding="utf-8")
        return path.as_uri()

    @contextmanager
    def __call__(self, value: Report, anchor: str = "", *, width: int = 1280, **options: Any) -> Iterator[Seen]:
        """The open page, closed afterwards; options are those of a playwright context."""
        address = self.file(value)
        context = self.browser.new_context(viewport={"width": width, "height": 900}, **options)
        seen = Seen(context.new_page())
        seen.page.on("console", lambda message: seen.trouble.append(f"console: {message.text}"))
        seen.page.on("pageerror", lambda error: seen.trouble.append(f"error: {error}"))
        seen.page.on("dialog", lambda dialog: (seen.trouble.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        seen.page.on(
            "request", lambda asked: None if asked.url == address else seen.trouble.append(f"request: {asked.url}")
        )
        seen.page.goto(address + anchor)
        try:
            yield seen
        finally:
            context.close()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Opener:
    """Opens a report's page."""
    return Opener(browser, tmp_path)


@pytest.fixture(scope="session")
def many() -> Report:
    """Five candidates, a floor and a control."""
    return report()


@pytest.fixture(scope="session")
def one(many: Report) -> Report:
    """One candidate with every axis."""
    return replace(many, candidates=many.candidates[:1])
