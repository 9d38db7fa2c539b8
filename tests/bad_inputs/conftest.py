"""A command line among bad files, and what must hold of it whatever is wrong."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli import conftest
from tests.cli.conftest import Ran, Shell

from . import files

engine, refract = conftest.engine, conftest.refract  # the fixtures

Case = tuple[Sequence[str], int, str, str]  # words, exit code, part of the line, part of the hint


@dataclass
class Bad:
    """A shell in a folder of bad files."""

    shell: Shell

    @property
    def folder(self) -> Path:
        """Where the commands run."""
        return self.shell.folder

    def refuses(self, *words: str, code: int, line: str, hint: str) -> Ran:
        """Runs the command and checks all that must hold of a refusal."""
        before = contents(self.folder)
        ran = self.shell(*words)
        assert ran.code == code, f"exit code {ran.code}: {ran.err}"
        said = [each for each in ran.err.split("\n") if each]
        assert len(said) == 2, f"a line and a hint, found {ran.err!r}"
        assert said[0].startswith("refract: ")
        assert said[1].startswith("  hint: ")
        assert line in said[0]
        assert hint in said[1]
        assert all(len(each) < 500 and each.isprintable() for each in said)
        assert not re.match(r"refract: unexpected \w+: ", said[0]), said[0]
        assert str(self.folder) not in ran.err or str(self.folder) in " ".join(words)
        assert ran.out == ""
        assert self.shell.engine.loads == [], "a model was loaded for it"
        assert contents(self.folder) == before, "something was lost or left behind"
        return ran


def contents(folder: Path) -> dict[str, str]:
    """Every file below `folder` but the cache's, by its digest: what may neither be lost nor appear."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if name.startswith("cache") or path.is_symlink() or not path.is_file():
            continue
        with may_read_anything(path):
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


@contextmanager
def may_read_anything(path: Path) -> Iterator[None]:
    """Lets the test itself read a file that its owner may not."""
    mode = path.stat().st_mode
    path.chmod(mode | 0o400)
    try:
        yield
    finally:
        path.chmod(mode)


@pytest.fixture
def bad(refract: Shell) -> Bad:
    """The command `refract` in a folder of bad files."""
    files.write(refract.folder)
    return Bad(refract)


_DAC_OVERRIDE, _DAC_READ_SEARCH, _VERSION_3 = 1, 2, 0x20080522


@pytest.fixture
def no_root_powers() -> Iterator[None]:
    """Takes from root, for one test, the right to pass over file permissions."""
    if os.geteuid() != 0:
        yield
        return
    if sys.platform != "linux":
        pytest.skip("run as root where its rights cannot be put aside")
    libc = ctypes.CDLL(None, use_errno=True)
    head = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    was, now = (ctypes.c_uint32 * 6)(), (ctypes.c_uint32 * 6)()
    assert libc.capget(head, was) == 0
    now[:] = was[:]
    now[0] &= ~(1 << _DAC_OVERRIDE | 1 << _DAC_READ_SEARCH)
    assert libc.capset(head, now) == 0
    yield
    assert libc.capset(head, was) == 0
