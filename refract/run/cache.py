"""Where answers are kept between runs."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from refract.errors import SetupError


def cache_folder(
    explicit: Path | None = None, *, environ: Mapping[str, str] | None = None, platform: str = sys.platform
) -> Path:
    """The cache folder, made if it was missing and known to be writable.

    First of: `explicit` (--cache-dir), REFRACT_CACHE_DIR, XDG_CACHE_HOME/refract, and the platform's own place:
    ~/Library/Caches/refract (macOS), %LOCALAPPDATA%/refract/Cache (Windows), ~/.cache/refract (elsewhere).

    Raises:
        SetupError: the folder cannot be made or written.
    """
    hint = "name another with --cache-dir or REFRACT_CACHE_DIR, or keep nothing with --no-cache"
    try:
        folder = _place(explicit, os.environ if environ is None else environ, platform)
    except RuntimeError as error:  # a home folder that is not known, as of ~somebody
        raise SetupError(f"no cache folder: {error}", hint=hint) from None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        message = f"the cache folder {folder} cannot be written: {error.strerror or error}"
        raise SetupError(message, hint=hint) from error
    return folder


def _place(explicit: Path | None, environ: Mapping[str, str], platform: str) -> Path:
    if explicit is not None:
        return explicit.expanduser()
    if own := environ.get("REFRACT_CACHE_DIR"):
        return Path(own).expanduser()
    if xdg := environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser() / "refract"
    if platform == "darwin":
        return Path.home() / "Library" / "Caches" / "refract"
    if platform == "win32":
        local = environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "refract" / "Cache"
    return Path.home() / ".cache" / "refract"
