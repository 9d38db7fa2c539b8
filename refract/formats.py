"""The catalogue of KV formats, modifiers and aliases: the single source of the parser, the CLI, the docs and the tests.

A new format is one entry in `FORMATS`, implementing one is its name in `BUILT`, a new modifier one in `MODIFIERS`.
Stored bits per value follow each format's published layout, scales and norms included.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from refract.format_spec import (
    LAYERS,
    Cost,
    Domain,
    Form,
    FormatSpec,
    ModifierSpec,
    Need,
    Option,
    Options,
    Sides,
    between,
    choice,
    count,
    form_of,
    share,
    whole,
)

if TYPE_CHECKING:
    from refract.kv import KVConfig

BACKENDS = ("mlx", "llamacpp", "vllm", "sglang")
BUILT: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "mlx": (
            *("f16", "f32", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl", "fp8_e4m3", "fp8_e5m2"),
            *("affine2", "affine3", "affine4", "affine5", "affine6", "affine8"),
            *(f"turbo{bits}" for bits in range(1, 9)),
            *("polar", "hybridpc"),
            *(f"rfsn{bits}" for bits in range(2, 9)),
            *(f"minmax{bits}" for bits in (2, 3, 4, 8)),
            *(f"nuq{bits}" for bits in (2, 3, 4)),
        ),
        "llamacpp": (
            *("f16", "f32", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"),
            *("turbo2", "turbo3", "turbo4"),  # in the turboquant fork of llama.cpp only
        ),
        # vLLM has pairs, not types of a side: q8_0, turbo and minmax stand for the nearest of its own
        "vllm": (
            *("f16", "bf16", "fp8_e4m3", "fp8_e5m2", "q8_0"),
            *("turbo3", "turbo4", "minmax3", "minmax4"),
        ),
        "sglang": ("f16", "f32", "bf16", "fp8_e4m3", "fp8_e5m2"),
    }
)


def unsupported(config: KVConfig, backend: str) -> list[str]:
    """Why `backend` cannot carry out `config`, one line a part; empty when it implements all of it."""
    reasons: list[str] = []
    for side in (config.k, config.v):
        spec = FORMATS[side.name]
        reasons += _reasons(spec, side.name, spec.options, side.options, backend)
    for key, value in config.options:
        modifier, (head, *rest) = KEYS[key], value.split(":")
        form = modifier.form(head)
        given = [(name, text) for name, _, text in (option.partition("=") for option in rest)]
        reasons += _reasons(modifier, f"{key}={head}", form.options if form else (), given, backend)
    return list(dict.fromkeys(reasons))


def _reasons(
    spec: FormatSpec | ModifierSpec,
    label: str,
    options: Sequence[Option],
    given: Iterable[tuple[str, str]],
    backend: str,
) -> list[str]:
    planned = f"is planned for {backend} and not implemented yet"
    if backend in spec.planned:
        return [f"{label} {planned}"]
    if backend not in spec.backends:
        return [f"{label} does not exist on {backend}"]
    built = {option.name for option in options if backend in option.backends}
    lacks = planned if backend == "mlx" else f"does not exist on {backend}"
    return [f"{label}:{name}={value} {lacks}" for name, value in given if name not in built]


def _formats(family: str, sizes: Iterable[int], description: str, cost: Cost | None, **rest: Any) -> list[FormatSpec]:
    """The family's formats, one a size; size 0 is a format on its own."""
    return [
        FormatSpec(
            name=f"{family}{n or ''}",
            family=family,
            size=n,
            description=description,
            cost=cost,
            backends=_built(f"{family}{n or ''}"),
            planned=_planned(f"{family}{n or ''}"),
            **rest,
        )
        for n in sizes
    ]


def _built(name: str) -> tuple[str, ...]:
    """The backends that implement the format."""
    return tuple(backend for backend in BACKENDS if name in BUILT.get(backend, ()))


def _planned(name: str) -> tuple[str, ...]:
    """The backends that are to implement it and do not yet."""
    return () if name in BUILT["mlx"] else ("mlx",)


def _fixed(name: str, bits: float, description: str, dense: bool = False) -> list[FormatSpec]:
    return _formats(name, [0], description, lambda *_: float(bits), dense=dense)


def _turbo_cost(size: int, options: Options, head_dim: int) -> float:
    """One fp16 norm a vector, and with prod a second one of the residual, where a bit is left for codes."""
    return size + 16 * (1 + int(options["prod"] == "1" and size > 1)) / head_dim


def _polar_cost(_: int, options: Options, __: int) -> float:
    """Level i of L stores 2^(L-i) angles for every 2^L values, which share one fp16 radius."""
    bits = [int(level) for level in options["bits"].split("-")]
    return float(sum(b << len(bits) - i for i, b in enumerate(bits, 1)) + 16) / (1 << len(bits))


def _hybrid_cost(_: int, options: Options, head_dim: int) -> float:
    """A share of the coordinates as polar, in groups of 16 with three levels of b - 2 bits above one of b, and the rest
    as b-bit codes with one fp16 norm."""
    bits, groups = int(options["bits"]), min(head_dim // 16, round(float(options["ratio"]) * head_dim / 16))
    polar = groups * (8 * bits + 7 * max(1, bits - 2) + 16)
    rest = head_dim - 16 * groups
    return (polar + (rest * bits + 16 if rest else 0)) / head_dim


def _rfsn_cost(size: int, options: Options, _: int) -> float:
    """Whole codes in a 32-bit word, and a 32-bit scale a group."""
    return 32 / (32 // size) + 32 / int(options["g"])


def _minmax_cost(size: int, options: Options, head_dim: int) -> float:
    return size + 32 / (head_dim if options["g"] == "head" else int(options["g"]))


def _nuq_cost(size: int, options: Options, head_dim: int) -> float:
    """Codes, an fp16 mean and deviation a group, and of every outlier the fp16 value and its place there.

    A group is a channel of 128 tokens or a head of one token; outliers are a share of it, at least one of each.
    """
    group, outliers = 128 if options["axis"] == "channel" else head_dim, float(options["outliers"])
    kept = max(1, round(outliers * group)) if outliers else 0
    return size + (32 + kept * (24 if group <= 256 else 32)) / group


def _polar_complaint(_: int, options: Options) -> str:
    levels = str(options["bits"].count("-") + 1)
    return "" if levels == options["levels"] else f"bits={options['bits']} has {levels} levels, not {options['levels']}"


def _hybrid_complaint(_: int, options: Options) -> str:
    return "" if int(options["bits"]) <= 7 else f"bits={options['bits']} is more than 7"


def _turbo_complaint(size: int, options: Options) -> str:
    return "codebook=legacy4 has 4 bits" if options["codebook"] == "legacy4" and size != 4 else ""


def _minmax_complaint(_: int, options: Options) -> str:
    over_tokens = options["axis"] == "channel" and options["g"] == "head"
    return "axis=channel groups tokens and g=head channels" if over_tokens else ""


_AFFINE = (choice("g", "64", "32", "128", backends=("mlx",)),)
_FP8 = (choice("scale", "none", "head", backends=("mlx",)),)
_TURBO = (
    choice("codebook", "normal", "sphere", "legacy4", backends=("mlx",)),
    choice("scale", "matched", "none", "eden", "ls", backends=("mlx",)),
    choice("prod", "0", "1", sides=("k",), backends=("mlx",)),  # 5.7 times the error of plain codes on V
)
_LEVELS = Domain((), "[1-8](-[1-8]){0,7}", "the bits of each level, as in 4-2-2-2")
_POLAR = (
    count("levels", 4, 1, backends=("mlx",)),
    Option(name="bits", domain=_LEVELS, default="4-2-2-2", backends=("mlx",)),
    choice("angles", "opt", "uniform", backends=("mlx",)),
)
_HYBRID = (share("ratio", "0.65", backends=("mlx",)), count("bits", 4, 1, backends=("mlx",)))
_RFSN = (choice("g", "32", "64", backends=("mlx",)),)
_MINMAX = (
    choice("axis", "token", "channel", backends=("mlx",)),
    choice("g", "32", "64", "128", "head", backends=("mlx", "vllm")),
)
_NUQ = (choice("axis", "channel", "token", backends=("mlx",)), share("outliers", "0", "0", backends=("mlx",)))

_CATALOGUE = (
    _fixed("f16", 16, "IEEE half", dense=True),
    _fixed("f32", 32, "IEEE single", dense=True),
    _fixed("bf16", 16, "bfloat16", dense=True),
    _fixed("q8_0", 8.5, "int8, blocks of 32"),
    _fixed("q5_1", 6.0, "5-bit min/max, blocks of 32"),
    _fixed("q5_0", 5.5, "5-bit symmetric, blocks of 32"),
    _fixed("q4_1", 5.0, "4-bit min/max, blocks of 32"),
    _fixed("q4_0", 4.5, "4-bit symmetric, blocks of 32"),
    _fixed("iq4_nl", 4.5, "16 uneven levels, blocks of 32"),
    _formats("fp8_e4m3", [0], "float, max 448", lambda _, o, d: 8 + 16 / d * (o["scale"] == "head"), options=_FP8),
    _formats("fp8_e5m2", [0], "float, max 57344", lambda _, o, d: 8 + 16 / d * (o["scale"] == "head"), options=_FP8),
    _formats(
        "affine", (2, 3, 4, 5, 6, 8), "scale and bias a group", lambda n, o, _: n + 32 / int(o["g"]), options=_AFFINE
    ),
    _formats("turbo", range(1, 9), "TurboQuant", _turbo_cost, options=_TURBO, rotated=True, complaint=_turbo_complaint),
    _formats("polar", [0], "PolarQuant", _polar_cost, options=_POLAR, rotated=True, complaint=_polar_complaint),
    _formats(
        "hybridpc", [0], "polar and plain", _hybrid_cost, options=_HYBRID, rotated=True, complaint=_hybrid_complaint
    ),
    _formats("rfsn", range(2, 9), "RFSN symmetric groups", _rfsn_cost, options=_RFSN),
    _formats("minmax", (2, 3, 4, 8), "KIVI min/max", _minmax_cost, options=_MINMAX, complaint=_minmax_complaint),
    _formats("nuq", (2, 3, 4), "KVQuant", _nuq_cost, options=_NUQ),
)
FORMATS: Mapping[str, FormatSpec] = MappingProxyType({spec.name: spec for entry in _CATALOGUE for spec in entry})

_OFF, _ON, _NONE, _SOME = form_of("0"), form_of("1"), form_of("none"), Form(head=whole(1))
# a budget in tokens replaces keep unless it is 0
_KEEP = (share("keep", "0.9", backends=("mlx",)), count("budget", 0, backends=("mlx",)))
_TRIATTENTION = (
    choice("v", "3", "1", "2", backends=("mlx",)),
    *_KEEP,
    count("window", 128, backends=("mlx",)),
    count("prefix", 128, backends=("mlx",)),
    count("segments", 8, 1, backends=("mlx",)),
    count("every", 128, 1, backends=("mlx",)),
    count("warmup", 256, backends=("mlx",)),
    count("calib", 1024, 1, backends=("mlx",)),
    choice("agg", "mean", "max", backends=("mlx",)),
    choice("norm", "0", "1", backends=("mlx",)),
    choice("mode", "global", "union", backends=("mlx",)),
    choice("order", "paper", "fork", backends=("mlx",)),
)
_BLOCK = (
    count("size", 64, 1, backends=("mlx",)),
    share("ratio", "0.5", backends=("mlx",)),
    count("sink", 1, backends=("mlx",)),
    count("recent", 2, backends=("mlx",)),
    choice("score", "mean", "jl", backends=("mlx",)),
)
_QJL = (Option(name="m", domain=whole(1, "d"), default="d", backends=("mlx",)),)
_TO = choice("to", "turbo2", *(name for name, spec in FORMATS.items() if not spec.dense and name != "turbo2"))
_EVICT = (
    _NONE,
    form_of("triattention", options=_TRIATTENTION, rivals=("keep", "budget")),
    form_of("recency", options=(count("sink", 4, backends=("mlx",)), *_KEEP), rivals=("keep", "budget")),
    form_of("random", options=_KEEP, rivals=("keep", "budget")),
)
_BOUNDARY = (_OFF, Form(head=whole(1), options=(choice("type", "f16", "q8_0", backends=("mlx",)),)))
_DECAY = Form(head=whole(1, prefix="age="), options=(_TO,))
# auto: whatever the format asks for, which for turbo is wht, or haar where the head dimension is no power of two
_ROTATIONS = ("auto", "none", "wht", "wht64", "haar", "iso", "iso_fast", "rotor")

_ROWS: tuple[tuple[str, tuple[Form, ...], Sides, Need, str], ...] = (
    ("rot", (form_of(*_ROTATIONS),), "each", "a compressed side", "rotation before storing"),
    ("seed", (_OFF, _SOME), "both", "a rotation, a sketch or a random choice", "seed of whatever is random"),
    ("qjl", (_OFF, form_of("gauss", "orth", options=_QJL)), "k", "a compressed K", "1-bit sketch of the residual"),
    ("kmean", (_OFF, _ON), "k", "a compressed K", "keys less their running mean"),
    ("kbias", (_OFF, _ON), "k", "a compressed K", "keys less the rotated key bias"),
    ("kcal", (_OFF, _SOME), "k", "a rotated K", "scales from N calibration tokens"),
    ("prerope", (_OFF, _ON), "k", "a compressed K", "keys before RoPE"),
    ("boundary", _BOUNDARY, "each", "a compressed side of another type", "first and last N KV layers f16"),
    ("layers", (form_of("all"), Form(head=LAYERS)), "both", "a compressed side", "layers to compress"),
    ("residual", (_OFF, _SOME), "both", "a compressed side", "newest N tokens kept f16"),
    ("sink", (_OFF, _SOME), "both", "a compressed side", "first N tokens kept f16"),
    ("prefill", (form_of("quant", "raw"),), "both", "a compressed side", "raw: compress when decoding"),
    ("sparsev", (_OFF, Form(head=between())), "both", "", "drop smaller attention weights"),
    ("select", (_NONE, form_of("block", options=_BLOCK)), "both", "", "read only the best blocks"),
    ("evict", _EVICT, "both", "", "drop tokens between forwards"),
    ("decay", (_NONE, _DECAY), "both", "a side of another type", "old tokens in a smaller format"),
)
_STATUS: Mapping[str, Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "boundary": {"backends": ("mlx", "vllm"), "planned": ()},  # vLLM: kv_cache_dtype_skip_layers
        "rot": {"backends": ("mlx", "llamacpp"), "planned": ()},  # llama.cpp: none turns its own rotation off
        "seed": {"backends": ("mlx",), "planned": ()},
        "layers": {"backends": ("mlx", "vllm"), "planned": ()},
        **{name: {"backends": ("mlx",), "planned": ()} for name in ("qjl", "kbias", "kmean", "kcal", "prerope")},
        **{name: {"backends": ("mlx",), "planned": ()} for name in ("sink", "residual", "prefill")},
        **{name: {"backends": ("mlx",), "planned": ()} for name in ("sparsev", "select", "evict")},
    }
)
MODIFIERS: Mapping[str, ModifierSpec] = MappingProxyType(
    {
        name: ModifierSpec(name=name, forms=forms, sides=sides, needs=needs, description=text, **_STATUS.get(name, {}))
        for name, forms, sides, needs, text in _ROWS
    }
)
KEYS: Mapping[str, ModifierSpec] = MappingProxyType({key: spec for spec in MODIFIERS.values() for key in spec.keys})
# rot may be written on a type too, as in turbo4:rot=haar
ROT = Option(name="rot", domain=MODIFIERS["rot"].forms[0].head, default=MODIFIERS["rot"].default)


def _turbo_pair(k: int, v: int) -> str:
    """mlx-swift's turbo0vN keeps keys in f16 and its turbo8vN stores them as 8-bit affine."""
    keys = {0: "f16", 8: "affine8"}.get(k, f"turbo{k}")
    return f"ctk={keys},ctv=turbo{v}"


NAMED_ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "kv8": "ctk=affine8,ctv=affine8",
        "boundaryv": "ctk=q8_0,ctv=turbo2,boundary_v=2:type=q8_0",
        "kivi2": "ctk=minmax2:axis=channel,ctv=minmax2,residual=128",
        "kvquant3": "ctk=nuq3:outliers=0.01,ctv=nuq3:axis=token:outliers=0.01,prerope=1,sink=1",
        "vllm:k8v4": "ctk=fp8_e4m3,ctv=minmax4:g=head,boundary=2",
        "vllm:4bit_nc": "ctk=turbo4,ctv=minmax4:g=head,boundary=2",
        "k8_v5_gs32": "ctk=rfsn8,ctv=rfsn5,rot=wht64",
        "rfsn_direct_packed_k8v8": "ctk=rfsn8:g=64,ctv=rfsn8:g=64,rot=wht64",
        "attn_rot_k=1": "rot_k=wht",
        "attn_rot_k=0": "rot_k=none",
        "attn_rot_v=1": "rot_v=wht",
        "attn_rot_v=0": "rot_v=none",
        "attn_rot_disable=1": "rot=none",
        "attn_rot_disable=0": "rot=auto",
    }
)
ALIASES: Mapping[str, str] = MappingProxyType(
    {**{f"turbo{k}v{v}": _turbo_pair(k, v) for k in range(9) for v in range(1, 9)}, **NAMED_ALIASES}
)
