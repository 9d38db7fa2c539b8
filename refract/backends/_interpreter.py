"""Another Python interpreter that has an engine: asked what it has, which takes seconds and is remembered."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from refract.atomic import write_atomically
from refract.errors import MissingPackageError, SetupError


def ask(
    python: str, words: Sequence[str], *, engine: str, timeout_s: float, env: Mapping[str, str] | None = None
) -> str:
    """What the interpreter prints when it is run with `words`.

    Raises: SetupError for no such interpreter or one that takes too long; MissingPackageError where it fails, which
        means that it has no such engine.
    """
    name, hint = Path(python).name, f"name the interpreter of {engine}'s own environment: --engine-arg python=…"
    try:
        done = subprocess.run([python, *words], capture_output=True, text=True, timeout=timeout_s, check=False, env=env)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetupError(f"the interpreter {name} cannot be run: {type(error).__name__}", hint=hint) from None
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        last = lines[-1][:200] if lines else f"exit status {done.returncode}"
        raise MissingPackageError(f"{name} has no {engine} that can be imported: {last}", hint=hint)
    return done.stdout


def last_object(text: str) -> dict[str, Any]:
    """The JSON object on the last line; empty where there is none: engines print lines of their own before it."""
    with suppress(ValueError, IndexError):
        found = json.loads(text.splitlines()[-1])
        return found if isinstance(found, dict) else {}
    return {}


def remembered(folder: Path | None, key: object, find: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `find` said for this key, a JSON value, when it was asked first."""
    if folder is None:
        return find()
    file = folder / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]}.json"
    with suppress(OSError, ValueError):
        if isinstance(known := json.loads(file.read_text("utf-8")), dict):
            return known
    found = find()
    with suppress(OSError):
        write_atomically(file, json.dumps(found).encode())
    return found
