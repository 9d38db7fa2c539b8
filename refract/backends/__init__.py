"""The engines, by name; a backend's modules are imported when it is asked for and not before.

A backend is one entry in `BACKENDS` and one package. Others come from installed distributions that have an entry point
in the group `refract.backends`. Either names a callable that takes the engine's own options (a mapping of strings) and
a folder for what the engine may want to keep, and returns an `Engine`.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from refract.errors import MissingPackageError, UsageError

if TYPE_CHECKING:
    from refract.engine import Engine

Factory = Callable[[Mapping[str, str], Path | None], "Engine"]

BACKENDS: Mapping[str, str] = MappingProxyType(
    {
        "mlx": "refract.backends.mlx.engine:MLXEngine",
        "llamacpp": "refract.backends.llamacpp.engine:LlamaCppEngine",
        "vllm": "refract.backends.vllm.engine:vllm_engine",
        "sglang": "refract.backends.sglang.engine:SGLangEngine",
        "openai": "refract.backends.openai.engine:OpenAIEngine",
    }
)
DEFAULT_BACKEND = "mlx"
ENTRY_POINTS = "refract.backends"


def backend_names() -> tuple[str, ...]:
    """The backends of this installation, built-in ones first."""
    others = sorted({point.name for point in entry_points(group=ENTRY_POINTS)} - set(BACKENDS))
    return (*BACKENDS, *others)


def load_engine(
    name: str | None = None, options: Mapping[str, str] | None = None, cache_dir: Path | None = None
) -> Engine:
    """The engine of this name, or the default one, with its own options.

    Raises:
        UsageError: no such backend, or an option it does not have.
        MissingPackageError: the engine's Python package is not installed.
    """
    name = name or DEFAULT_BACKEND
    place = BACKENDS.get(name) or _entry_point(name)
    module, _, attribute = place.partition(":")
    try:
        factory = cast("Factory", getattr(importlib.import_module(module), attribute))
        return factory(options or {}, cache_dir)
    except ModuleNotFoundError as error:
        missing = (error.name or module).partition(".")[0]
        if missing == "refract":
            raise
        message = f"the backend {name} needs the Python package {missing}, which is not installed"
        hint = f"pip install 'refract-kv[{name}]'" if name in BACKENDS else f"install {missing}"
        raise MissingPackageError(message, hint=hint) from error


def _entry_point(name: str) -> str:
    """Where an installed distribution says the backend is."""
    for point in entry_points(group=ENTRY_POINTS):
        if point.name == name:
            return point.value
    names = backend_names()
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]}?" if close else "refract formats lists the backends and what each is to have"
    raise UsageError(f"no backend {name} here, expected {' or '.join(names)}", hint=hint)
