from __future__ import annotations

import subprocess
import sys

import pytest

import refract.report


@pytest.mark.parametrize("name", refract.report.__all__)
def test_everything_named_can_be_imported(name: str) -> None:
    assert callable(getattr(refract.report, name))


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'to_pdf'"):
        refract.report.to_pdf  # noqa: B018 - the access itself is what is tested


def test_json_needs_neither_rich_nor_jinja2() -> None:
    code = "import sys; from refract.report import to_json; print({'rich', 'jinja2'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
