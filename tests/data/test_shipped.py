"""The folders that ship with the package are found in a checkout and in a wheel."""

from __future__ import annotations

from pathlib import Path

import pytest

from refract.data.shipped import shipped
from refract.errors import SetupError


def test_the_bundled_prompts_are_found() -> None:
    assert (shipped("prompts") / "v1.jsonl").is_file()


def test_a_checkout_has_the_folder_beside_the_package(tmp_path: Path) -> None:
    (tmp_path / "prompts").mkdir()
    assert shipped("prompts", package=tmp_path / "refract") == tmp_path / "prompts"


def test_a_wheel_has_it_inside_and_a_stray_neighbor_does_not_count(tmp_path: Path) -> None:
    inside = tmp_path / "refract" / "_shipped" / "prompts"
    inside.mkdir(parents=True)
    (tmp_path / "prompts").mkdir()
    assert shipped("prompts", package=tmp_path / "refract") == inside


def test_neither_is_one_line_and_a_hint(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="lacks its folder prompts") as caught:
        shipped("prompts", package=tmp_path / "refract")
    assert caught.value.hint
