"""What a vLLM process really allocated, layer by layer, held against what it was asked for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from refract.backends.vllm.http_kv import same_type
from refract.backends.vllm.kvtypes import bytes_per_value, is_plain, short_name
from refract.errors import ConfigMismatchError, EngineError
from refract.kv import KVConfig
from refract.work import EffectiveKV

_DTYPES = {"half": "float16", "float": "float32"}  # vLLM's other names
_NUMBER = re.compile(r"\.(\d+)\.")


def effective_kv(
    kv: KVConfig, asked: str, facts: Mapping[str, Any], *, layers: int, values: int, head_dim: int
) -> EffectiveKV:
    """What `facts` says was allocated for a model of so many layers, each with `values` K and V elements a token.

    `values` is 0 where the model's files do not say. Raises: ConfigMismatchError for another type, other layers
    spared, another size, or prefix caching; EngineError where vLLM names no cache.
    """
    found: Sequence[Mapping[str, Any]] = facts["layers"]
    if not found:
        raise EngineError("vLLM names no layer that keeps a KV cache", hint="this model has none that is known here")
    if facts["prefix_caching"]:
        raise ConfigMismatchError("vLLM keeps prefixes though it was told not to")
    names = {str(layer["name"]): layer for layer in found}
    compressed = {name for name, layer in names.items() if _compressed(layer)}
    _check_types(kv, asked, [names[name] for name in compressed])
    if not is_plain(asked):
        _check_spared(kv, layers, names, compressed)
    total = sum(float(layer["bytes"]) for layer in found)
    own = sorted({short_name(str(layer["stored"])) for name, layer in names.items() if name not in compressed})
    _check_size(total, [bytes_per_value(asked, head_dim) if name in compressed else None for name in names], values)
    name = own[0] if is_plain(asked) and own else asked
    return EffectiveKV(
        k=name,
        v=name,
        layers=len(names),
        layers_compressed=len(compressed),
        bytes_per_token=total,
        notes=tuple(_notes(kv, asked, facts, own, len(names) - len(compressed))),
    )


def check_settings(given: Mapping[str, str], made: Mapping[str, str]) -> None:
    """Holds the arguments that decide how sums are ordered and rounded against what vLLM made of them.

    Raises: ConfigMismatchError for one that vLLM changed.
    """
    for name in sorted(given.keys() & made.keys()):
        asked = given[name].lower()
        if asked != "auto" and _DTYPES.get(asked, asked) != made[name]:
            raise ConfigMismatchError(
                f"asked for {name}={given[name]}, vLLM runs with {made[name]}",
                hint=f"give it another {name}, or leave it out of --engine-arg",
            )


def _compressed(layer: Mapping[str, Any]) -> bool:
    return not is_plain(str(layer["asked"])) and str(layer["stored"]) not in ("float32", "float16", "bfloat16")


def _check_types(kv: KVConfig, asked: str, compressed: Sequence[Mapping[str, Any]]) -> None:
    types = sorted({str(layer["asked"]) for layer in compressed})
    if is_plain(asked) != (not types) or any(not same_type(asked, name) for name in types):
        held = ", ".join(types) or "the model's own type"
        raise ConfigMismatchError(
            f"asked for {kv} ({asked}), vLLM allocated {held}", hint="leave KV types out of --engine-arg"
        )


def _check_spared(kv: KVConfig, layers: int, names: Mapping[str, object], compressed: set[str]) -> None:
    """For TurboQuant vLLM spares the first and last two layers of dense models unasked."""
    numbers = {name: int(match[1]) if (match := _NUMBER.search(name)) else -1 for name in names}
    spared = {numbers[name] for name in names if name not in compressed}
    wanted = set(range(layers)) - kv.own_layers(layers)[0]
    if spared != wanted:
        raise ConfigMismatchError(
            f"{kv} spares {_listed(wanted)}, vLLM spares {_listed(spared)}",
            hint="write the candidate with boundary=N for its first and last N layers",
        )


def _check_size(total: float, widths: Sequence[float | None], values: int) -> None:
    """Compressed layers must take what their type takes; the others' own type may be of 2 or 4 bytes."""
    if not values or all(width is None for width in widths):
        return
    least, most = (values * sum(own if width is None else width for width in widths) for own in (2.0, 4.0))
    if not 0.99 * least <= total <= 1.01 * most:
        raise ConfigMismatchError(
            f"the KV cache takes {total:,.0f} bytes a token, and its types should take {least:,.0f}",
            hint="this is a bug or another version's layout: please report it with the output of refract selftest",
        )


def _notes(kv: KVConfig, asked: str, facts: Mapping[str, Any], own: Sequence[str], spared: int) -> list[str]:
    stored = sorted({str(layer["stored"]) for layer in facts["layers"] if _compressed(layer)})
    notes = [f"{kv} → {asked}" + (f", stored as {', '.join(stored)}" if stored else f", the model's own {own[0]}")]
    if stored and spared:
        notes.append(f"{spared} layers keep the model's own {', '.join(own)}")
    backends = sorted({str(layer["backend"]) for layer in facts["layers"] if layer["backend"]})
    dtype, ranks = facts["settings"]["dtype"], facts["settings"]["tensor_parallel_size"]
    notes.append(f"{facts['platform']}, {dtype}" + (f", attention {', '.join(backends)}" if backends else ""))
    if facts["platform"] == "cpu" and stored:
        notes.append("vLLM's processor kernels truncate to fp8 instead of rounding: about 3.5 times the squared error")
    if int(ranks) > 1:
        notes.append(f"{ranks} ranks share the heads; bytes are their sum")
    return notes


def _listed(layers: set[int]) -> str:
    return f"layers {', '.join(map(str, sorted(layers)))}" if layers else "no layer"
