"""The models that an engine is asked for: each found once, with its tokenizer and what it is by its contents."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from refract.backends._fingerprint import fingerprint
from refract.backends._source import ModelSource, find_model
from refract.backends._tokenizer import HFTokenizer, load_tokenizer
from refract.errors import ModelError

Form = Literal["gguf", "folder", "either"]


class Models:
    """What `engine` (its name in messages) needs to know of models on this machine; no weights are read.

    `form` is what it runs. What takes time to find out is kept under `cache_dir`.
    """

    def __init__(self, engine: str, cache_dir: Path | None, *, form: Form = "either") -> None:
        self._engine, self._cache_dir, self._form = engine, cache_dir, form
        self._found: dict[str, ModelSource] = {}

    @property
    def known(self) -> tuple[str, ...]:
        """Those that were found so far."""
        return tuple(self._found)

    def source(self, model: str) -> ModelSource:
        """Where it lies and what its files say. Raises: ModelError for none, and for a form that is not run."""
        if model not in self._found:
            found = find_model(model)
            if self._form == "gguf" and not found.is_gguf:
                raise ModelError(f"{self._engine} runs GGUF files, {found.name} is a folder", hint="convert it to GGUF")
            if self._form == "folder" and found.is_gguf:
                raise ModelError(
                    f"{self._engine} runs model folders, {found.name} is a GGUF file", hint="give the folder"
                )
            self._found[model] = found
        return self._found[model]

    def tokenizer(self, model: str) -> HFTokenizer:
        """Its tokenizer; what is built from a GGUF file is kept."""
        return load_tokenizer(self.source(model).path, self._cache_dir)

    def fingerprint(self, model: str) -> str:
        """`sha256:…` of the files that decide what it computes."""
        return fingerprint(self.source(model).files, self._cache_dir)

    def describe(self, model: str, **more: str) -> dict[str, str | int]:
        """Name, architecture, layers, head dimension, how the weights are stored, and over these `more`."""
        source = self.source(model)
        return {
            "name": source.name,
            "architecture": source.architecture,
            "layers": source.layers,
            "head_dim": source.head_dim,
            "weights": source.weights,
            **more,
        }
