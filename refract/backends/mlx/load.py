"""Loads a model, gives every layer its codecs, and verifies that the caches act as requested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import mlx.core as mx
import mlx.nn as nn

from refract.backends._gguf import read_gguf
from refract.backends._source import ModelSource
from refract.backends.mlx.cache import LayerSpec
from refract.backends.mlx.gguf_model import load_gguf_model
from refract.backends.mlx.lanes import make_lanes
from refract.backends.mlx.layer_plan import side_specs
from refract.backends.mlx.model import layer_windows, split_model
from refract.backends.mlx.partial import attach, held_share, notes
from refract.backends.mlx.probe import probe
from refract.backends.mlx.retention import retention_of
from refract.backends.mlx.session import MLXSession
from refract.engine import Blobs, LoadSpec
from refract.errors import ConfigMismatchError, ModelError
from refract.kv import KVConfig
from refract.work import EffectiveKV, TokenIds

_CACHE_LIMIT_BYTES = 256 << 20  # freed arrays that MLX may keep for reuse; more made nothing faster
_DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}


class Runtime:
    """What needs a model in memory: kept apart so that planning a run imports no mlx-lm."""

    def open_session(
        self,
        source: ModelSource,
        spec: LoadSpec,
        blobs: Blobs,
        *,
        eos_ids: frozenset[int],
        trial: TokenIds,
        options: Mapping[str, str],
    ) -> MLXSession:
        """The model loaded from `source`, its caches proven to store what `spec.kv` says.

        `options` are the engine's, all of them and checked. `trial` is a text on which parts that are read are counted.
        """
        mx.set_cache_limit(_CACHE_LIMIT_BYTES)
        model, wanted = _load(source, options["dtype"])
        split = split_model(model)
        specs = layer_specs(spec.kv, source.head_dim, layer_windows(split.cache_kinds), split.layers)
        effective, vocab_size = probe(split, specs, _own_layers(spec.kv, len(specs)))
        _require_match(spec.kv, effective)
        partial = attach(spec.kv, split, specs, source.head_dim)
        more = notes(spec.kv, partial, split, trial)
        return MLXSession(
            split,
            partial.keeper,
            effective_kv=replace(
                effective,
                bytes_per_token=_held_bytes(effective, specs, held_share(spec.kv)),
                notes=(*effective.notes, *more),
            ),
            blobs=blobs,
            eos_ids=eos_ids,
            vocab_size=vocab_size,
            max_tokens=spec.max_tokens,
            dtype=wanted,
            lanes=make_lanes(),
            batch=int(options["batch"]),
            chunk=int(options["chunk"]),
        )

    def free_memory(self) -> None:
        """Returns what MLX keeps of freed arrays to the system."""
        mx.clear_cache()


def _compute_dtype(requested: str) -> mx.Dtype | None:
    """The dtype to run in, None for the model's own: a CPU is fastest, by far, in float32."""
    if requested != "auto":
        return _DTYPES[requested]
    return mx.float32 if mx.default_device() == mx.cpu else None


def _load(source: ModelSource, dtype: str) -> tuple[nn.Module, mx.Dtype]:
    wanted = _compute_dtype(dtype)
    if source.is_gguf:
        wanted = wanted or mx.float16
        return load_gguf_model(read_gguf(source.path), wanted)[0], wanted
    from mlx_lm.utils import load_model

    try:
        model, _ = load_model(source.path)
    except (ValueError, KeyError, FileNotFoundError, RuntimeError) as error:
        raise ModelError(
            f"mlx-lm cannot load {source.name} ({source.architecture}): {error}",
            hint="check that this mlx-lm version supports the architecture",
        ) from None
    if wanted is not None:
        model.set_dtype(wanted)
    mx.eval(model.parameters())
    return model, wanted or model.layers[0].input_layernorm.weight.dtype


def layer_specs(
    kv: KVConfig, head_dim: int, windows: Sequence[int | None], layers: Sequence[nn.Module] | None = None
) -> tuple[LayerSpec, ...]:
    """Each layer's codecs: f16 where `layers=` spares it, the boundary format at the ends, the side's own elsewhere.

    `layers` are the model's, which kbias and prerope look at. Raises: KVUnsupportedError as `side_specs` does.
    """
    sides = side_specs(kv, head_dim, len(windows), layers)
    return tuple(
        LayerSpec(k=k.codec, v=v.codec, window=window, modifiers=k.modifiers, retention=retention_of(kv))
        for (k, v), window in zip(sides, windows, strict=True)
    )


def _held_bytes(effective: EffectiveKV, specs: Sequence[LayerSpec], share: float) -> float:
    """Bytes a token when only `share` of them is held in the layers that attend to everything."""
    open_layers = sum(spec.window is None for spec in specs) / len(specs)
    return effective.bytes_per_token * (1.0 - open_layers * (1.0 - share))


def _own_layers(kv: KVConfig, count: int) -> tuple[int, int]:
    """(K, V) a layer that is stored as `ctk` or `ctv` says."""
    k, v = kv.own_layers(count)
    return min(k), min(v)


def _require_match(kv: KVConfig, effective: EffectiveKV) -> None:
    if (str(kv.k), str(kv.v)) != (effective.k, effective.v):
        raise ConfigMismatchError(
            f"asked for {kv}, the caches hold ctk={effective.k},ctv={effective.v}",
            hint="this is a bug; please report it with the output of: refract selftest",
        )
