"""`refract engines build-llamacpp`: finds what is built, names its folder on stdout."""

from __future__ import annotations

from pathlib import Path

import pytest

from refract.backends.llamacpp.build import TARGETS, Builder
from refract.data.shipped import shipped
from tests.cli.conftest import Shell


@pytest.mark.parametrize("patched", [False, True])
def test_what_is_built_is_found_at_once(refract: Shell, tmp_path: Path, patched: bool) -> None:
    patches = tuple(sorted(shipped("llama-cpp-patches").glob("*.patch"))) if patched else ()
    folder = Builder(cache=tmp_path, patches=patches).folder
    folder.mkdir(parents=True)
    for target in TARGETS:
        (folder / target).write_text("")
    ran = refract("engines", "build-llamacpp", "--cache-dir", str(tmp_path), *(["--patched"] if patched else []))
    assert (ran.code, ran.out) == (0, f"{folder}\n")
    assert "already built" in ran.err


def test_another_action_is_a_usage_error(refract: Shell) -> None:
    ran = refract("engines", "build-lamacpp")
    assert ran.code == 2
    assert "did you mean build-llamacpp?" in ran.err
