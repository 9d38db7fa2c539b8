"""What an installed SGLang takes: asked of the interpreter that has it, and what the user says held against it."""

from __future__ import annotations

import difflib
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refract.backends._interpreter import ask, last_object, remembered
from refract.errors import SetupError, UsageError

_INSIDE = str(Path(__file__).with_name("inside.py"))
_VERSIONS = "import importlib.metadata as m; print(m.version('sglang'), m.version('torch'))"
_VERSIONS_S, _INSIDE_S = 60.0, 600.0
_CACHE_VERSION = 1
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
# What this backend says itself, and how it is said to it instead.
_OURS: Mapping[str, str] = {
    "model_path": "--model",
    "model": "--model",
    "kv_cache_dtype": "--reference and --candidate",
    "host": "nothing: it is this machine",
    "port": "nothing: a free one is taken",
    "config": "--engine-arg, one argument at a time",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """An SGLang that can be started: its interpreter, version, the device it finds, and the arguments it takes.

    `arguments` maps every name of an argument to its flag, the kind of its values, and the name it stands for.
    """

    python: str
    version: str
    device: str
    arguments: Mapping[str, Mapping[str, Any]]

    def flags(self, values: Mapping[str, str]) -> list[str]:
        """The words of the command line for these arguments. Raises: UsageError for one SGLang would not take."""
        return [word for name, value in values.items() for word in _words(self._known(name), name, value)]

    def names(self, values: Mapping[str, str]) -> set[str]:
        """What the arguments set, whichever of its names each was called by."""
        return {str(self._known(name)["same"]) for name in values}

    def has(self, name: str) -> bool:
        """Whether this version takes an argument of this name."""
        return name in self.arguments

    def _known(self, name: str) -> Mapping[str, Any]:
        if name in _OURS:
            raise UsageError(f"{name} is not for --engine-arg", hint=f"it is set by {_OURS[name]}")
        if name not in self.arguments:
            close = difflib.get_close_matches(name, self.arguments, n=1)
            hint = f"did you mean {close[0]}?" if close else "see: python -m sglang.launch_server --help"
            raise UsageError(f"SGLang {self.version} has no argument {name!r}", hint=hint)
        return self.arguments[name]


def find_installation(python: str, cache_dir: Path | None) -> Installation:
    """The SGLang of this interpreter; what takes seconds to find out is remembered by version.

    Raises: SetupError for no such interpreter; MissingPackageError where it has no SGLang that can be imported.
    """
    versions = ask(python, ["-c", _VERSIONS], engine="SGLang", timeout_s=_VERSIONS_S)
    key = [_CACHE_VERSION, python, versions, os.environ.get("CUDA_VISIBLE_DEVICES", "")]
    found = remembered(None if cache_dir is None else cache_dir / "sglang", key, lambda: _found(python))
    return Installation(python=python, version=found["version"], device=found["device"], arguments=found["arguments"])


def _found(python: str) -> dict[str, Any]:
    found = last_object(ask(python, [_INSIDE], engine="SGLang", timeout_s=_INSIDE_S))
    if found.keys() >= {"version", "device", "arguments"}:
        return found
    raise SetupError("SGLang does not say what arguments it takes", hint="check: python -m sglang.launch_server --help")


def _words(argument: Mapping[str, Any], name: str, value: str) -> list[str]:
    flag, kind = str(argument["flag"]), argument["kind"]
    if kind in ("flag", "on-off"):
        if value.lower() in _TRUE:
            return [flag]
        if value.lower() in _FALSE:
            return [f"--no-{flag[2:]}"] if kind == "on-off" else []
        raise UsageError(f"{name} is on or off, found {value!r}", hint=f"write {name}=true or {name}=false")
    values = shlex.split(value) if kind == "many" else [value]
    for each in values:
        _check_value(argument, name, each)
    return [flag, *values] if kind == "many" else [f"{flag}={value}"]


def _check_value(argument: Mapping[str, Any], name: str, value: str) -> None:
    choices = argument["choices"]
    if choices and value not in choices:
        raise UsageError(f"{name} is {value!r}, which SGLang does not know", hint=f"use one of {', '.join(choices)}")
    number = {"int": int, "float": float}.get(argument["number"])
    if number is not None:
        try:
            number(value)
        except ValueError:
            what = "a whole number" if number is int else "a number"
            raise UsageError(f"{name} must be {what}, found {value!r}") from None
