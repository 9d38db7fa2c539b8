"""Reports as JSON, text, HTML and Markdown: pure functions of `refract.results.Report`, loaded when asked for.

What compares several reports is in `refract.report.compare`, `compare_text` and `markdown`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from refract.report.html import to_html
    from refract.report.jsonfile import from_json, schema, to_json
    from refract.report.markdown import to_markdown
    from refract.report.output import write_text_atomic
    from refract.report.text import to_text

__all__ = ["from_json", "schema", "to_html", "to_json", "to_markdown", "to_text", "write_text_atomic"]

_HOMES = {
    "from_json": "jsonfile",
    "schema": "jsonfile",
    "to_html": "html",
    "to_json": "jsonfile",
    "to_markdown": "markdown",
    "to_text": "text",
    "write_text_atomic": "output",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
