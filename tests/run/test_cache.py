from __future__ import annotations

from pathlib import Path

import pytest

from refract.errors import SetupError
from refract.run.cache import cache_folder


def test_the_first_place_that_is_named_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    environ = {"REFRACT_CACHE_DIR": str(tmp_path / "own"), "XDG_CACHE_HOME": str(tmp_path / "xdg")}
    assert cache_folder(tmp_path / "explicit", environ=environ) == tmp_path / "explicit"
    assert cache_folder(environ=environ) == tmp_path / "own"
    del environ["REFRACT_CACHE_DIR"]
    assert cache_folder(environ=environ) == tmp_path / "xdg" / "refract"
    home = tmp_path / "home"
    assert cache_folder(environ={}, platform="linux") == home / ".cache" / "refract"
    assert cache_folder(environ={}, platform="darwin") == home / "Library" / "Caches" / "refract"
    local = {"LOCALAPPDATA": str(tmp_path / "local")}
    assert cache_folder(environ=local, platform="win32") == tmp_path / "local" / "refract" / "Cache"
    assert cache_folder(environ={}, platform="win32") == home / "AppData" / "Local" / "refract" / "Cache"


def test_an_empty_variable_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    environ = {"REFRACT_CACHE_DIR": "", "XDG_CACHE_HOME": ""}
    assert cache_folder(environ=environ, platform="linux") == tmp_path / ".cache" / "refract"


def test_the_folder_is_made_and_empty(tmp_path: Path) -> None:
    folder = cache_folder(tmp_path / "a" / "b")
    assert folder.is_dir()
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_one_line_and_a_hint(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SetupError, match=r"cache folder .* cannot be written") as caught:
        cache_folder(tmp_path / "file" / "cache")
    assert caught.value.hint is not None
    assert "--no-cache" in caught.value.hint
