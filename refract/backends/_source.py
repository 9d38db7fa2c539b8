"""Where a model's files are and what they say of it, without loading a weight."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refract.backends._gguf import part_paths, read_gguf
from refract.errors import MissingPackageError, ModelError

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """A model on this machine: a GGUF file or a Hugging Face directory, as mlx-lm reads it.

    `files` are those that decide what the model computes; `name` is what reports call it and holds no folder of this
    machine. `parameters` is 0 where the files do not say.
    """

    name: str
    path: Path
    files: tuple[Path, ...]
    architecture: str
    layers: int
    head_dim: int
    context_length: int
    weights: str  # how the weights are stored, such as "GGUF Q4_1" or "bfloat16"

    @property
    def is_gguf(self) -> bool:
        """Whether the model is a GGUF file."""
        return self.path.is_file()


def find_model(model: str) -> ModelSource:
    """The model that `model` names: a .gguf file, a directory with config.json, or a hub name like org/name.

    A hub name is looked up in this machine's hub cache; nothing is downloaded (see `fetch_from_hub`).

    Raises: ModelError when there is no such model or it cannot be read; MissingPackageError without a hub client.
    """
    path = Path(model).expanduser()
    if path.is_file():
        return _from_gguf(path)
    if path.is_dir():
        return _from_directory(path, path.resolve().name)
    if is_hub_name(model):
        return _from_directory(_hub_folder(model), model)
    raise ModelError(
        f"there is no model at {model!r}: no .gguf file, no directory, and not a hub name like org/name",
        hint="give the path of a model, or fetch the small default one with: refract fetch --model smollm2",
    )


def is_hub_name(model: str) -> bool:
    """Whether `model` can only mean a repository of the Hugging Face hub: org/name, and no file or folder here."""
    looks_like_one = _HUB_NAME.fullmatch(model) is not None and not model.startswith((".", "/"))
    return looks_like_one and not model.endswith(".gguf") and not Path(model).exists()


def fetch_from_hub(name: str) -> Path:
    """The folder of a hub repository's model, downloaded where it is missing.

    Raises: ModelError when it cannot be had; MissingPackageError without a hub client.
    """
    try:
        return _snapshot(name, local_files_only=False)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"cannot get {name} from the hub: {type(error).__name__}",
            hint="check the name and the network, or give the path of a model on this machine",
        ) from None


def _hub_folder(name: str) -> Path:
    try:
        return _snapshot(name, local_files_only=True)
    except (OSError, ValueError):
        raise ModelError(
            f"{name} is not in this machine's hub cache, and only --fetch downloads",
            hint=f"refract fetch --model {name}, or give the path of a model on this machine",
        ) from None


def _snapshot(name: str, *, local_files_only: bool) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise MissingPackageError(
            f"{name} is a hub name, and the package huggingface_hub is missing", hint="pip install 'refract-kv[mlx]'"
        ) from None
    return Path(snapshot_download(name, allow_patterns=list(_HUB_FILES), local_files_only=local_files_only))


def _from_gguf(path: Path) -> ModelSource:
    gguf = read_gguf(path)
    largest = max(gguf.tensors.values(), key=lambda tensor: tensor.size_bytes, default=None)
    kinds = [t.type_name for t in gguf.tensors.values() if t is not largest and len(t.shape) > 1]
    common = max(set(kinds), key=kinds.count) if kinds else "?"
    heads, width = gguf.get("attention.head_count", 0), gguf.get("embedding_length", 0)
    default_dim = width // heads if isinstance(heads, int) and isinstance(width, int) and heads else 0
    return ModelSource(
        name=path.name,
        path=path,
        files=tuple(part_paths(path, gguf.metadata)),
        architecture=gguf.architecture,
        layers=_whole(gguf.get("block_count"), path, "block_count"),
        head_dim=_whole(gguf.get("attention.key_length", default_dim), path, "attention.key_length"),
        context_length=_whole(gguf.get("context_length"), path, "context_length"),
        weights=f"GGUF {common}",
    )


def _whole(value: object, path: Path, key: str) -> int:
    if not isinstance(value, int) or value < 1:
        raise ModelError(
            f"{path.name}: {key} should be a positive number, found {value!r}", hint="convert the model again"
        )
    return value


def _config(path: Path) -> dict[str, Any]:
    file = path / "config.json"
    try:
        config = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        raise ModelError(
            f"{path.name} is a directory without config.json", hint="give an mlx-lm model directory or a .gguf file"
        ) from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path.name}/config.json cannot be read: {error}", hint="download the model again") from None
    if not isinstance(config, dict):
        raise ModelError(f"{path.name}/config.json holds no object", hint="download the model again")
    return config


def _object(config: Mapping[str, Any], key: str, path: Path) -> Mapping[str, Any]:
    """The object under `key`, empty where there is none."""
    value = config.get(key) or {}
    if not isinstance(value, dict):
        raise ModelError(
            f"{path.name}/config.json: {key} should be an object, found {value!r:.40}", hint="download the model again"
        )
    return value


def _from_directory(path: Path, name: str) -> ModelSource:
    config = _config(path)
    text = _object(config, "text_config", path) or config
    weights = sorted(path.glob("model*.safetensors"))
    if not weights:
        raise ModelError(f"{name} holds no model*.safetensors", hint="download the model's weights")
    others = ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
    heads = _whole(text.get("num_attention_heads", 1), path, "num_attention_heads")
    width = _whole(text.get("hidden_size", heads), path, "hidden_size")
    quantization = _object(config, "quantization", path)
    dtype = str(config.get("torch_dtype") or config.get("dtype") or "?")
    return ModelSource(
        name=name,
        path=path,
        files=(*weights, *(path / other for other in others if (path / other).is_file())),
        architecture=str(config.get("model_type", "")),
        layers=_whole(text.get("num_hidden_layers"), path, "num_hidden_layers"),
        head_dim=_whole(text.get("head_dim") or width // heads, path, "head_dim"),
        context_length=_whole(text.get("max_position_embeddings"), path, "max_position_embeddings"),
        weights=f"MLX {quantization['bits']}-bit" if "bits" in quantization else dtype,
    )
