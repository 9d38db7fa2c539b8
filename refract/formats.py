"""The catalogue of KV formats, modifiers and aliases: the single source of the parser, the CLI, the docs and the tests.

A new format is one entry in `FORMATS`, implementing one is its name in `BUILT`, a new modifier one in `MODIFIERS`.
Stored bits per value follow each format's published layout, scales and norms included.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log2
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from refract.kv import KVConfig

BACKENDS = ("mlx", "llamacpp", "vllm", "sglang")
BUILT: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "mlx": (
            *("f16", "f32", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl", "fp8_e4m3", "fp8_e5m2"),
            *("affine2", "affine3", "affine4", "affine5", "affine6", "affine8"),
            *(f"turbo{bits}" for bits in range(1, 9)),
            "polar",
            *(f"rfsn{bits}" for bits in range(2, 9)),
            *(f"minmax{bits}" for bits in (2, 3, 4, 8)),
        )
    }
)
_TURBO_FORK = ("turbo2", "turbo3", "turbo4")  # in the turboquant fork of llama.cpp only
# What these engines have. For mlx every format is planned.
PLANNED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "llamacpp": ("f16", "f32", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl", *_TURBO_FORK),
        "vllm": ("f16", "bf16", "fp8_e4m3", "fp8_e5m2"),
        "sglang": ("bf16", "fp8_e4m3", "fp8_e5m2"),
    }
)

Options = Mapping[str, str]
Cost = Callable[[int, Options, int], float]  # (size, every option, head_dim) -> stored bits per value
Complaint = Callable[[int, Options], str]  # (size, every option) -> what is wrong with them together, or nothing
Sides = Literal["each", "k", "both"]
Need = Literal[
    "",
    "a compressed side",
    "a compressed side of another type",
    "a side of another type",
    "a compressed K",
    "a rotated K",
    "a rotation, a sketch or a random choice",
]


@dataclass(frozen=True, slots=True)
class Domain:
    """The values one key or option takes: `words`, and whatever `pattern` matches and `read` makes canonical."""

    words: tuple[str, ...] = ()
    pattern: str = ""
    meaning: str = ""
    read: Callable[[str], str] = str

    @property
    def expected(self) -> str:
        """What a value looks like, for messages and tables."""
        return " or ".join(filter(None, (", ".join(self.words), self.meaning)))

    def canonical(self, text: str) -> str:
        """The one spelling of the value that `text` (lower case) stands for. Raises ValueError when it is no value."""
        if text in self.words:
            return text
        if not self.pattern or not re.fullmatch(self.pattern, text):
            raise ValueError(text)
        return self.read(text)

    def accepts(self, text: str) -> bool:
        """Whether `text` stands for a value."""
        try:
            self.canonical(text)
        except ValueError:
            return False
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One `name=value` behind a colon. `backends` are those that implement values other than the default."""

    name: str
    domain: Domain
    default: str
    sides: tuple[str, ...] = ("k", "v")
    backends: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatSpec:
    """A storage format of keys or values.

    `size` is the N of a family's name (bits of a code), 0 for a format on its own. `dense` formats keep 16 bits or more
    and compress nothing. `rotated` ones are stored rotated unless `rot` says otherwise.
    """

    name: str
    family: str
    size: int
    description: str
    cost: Cost | None
    options: tuple[Option, ...] = ()
    sides: tuple[str, ...] = ("k", "v")
    dense: bool = False
    rotated: bool = False
    complaint: Complaint = lambda *_: ""

    @property
    def backends(self) -> tuple[str, ...]:
        """The backends that implement it."""
        return tuple(backend for backend in BACKENDS if self.name in BUILT.get(backend, ()))

    @property
    def planned(self) -> tuple[str, ...]:
        """The backends that are to implement it and do not yet."""
        ahead = [backend for backend in BACKENDS if backend == "mlx" or self.name in PLANNED[backend]]
        return tuple(backend for backend in ahead if backend not in self.backends)

    def bits_per_value(self, options: Iterable[tuple[str, str]] = (), head_dim: int = 128) -> float | None:
        """Stored bits per value, scales and norms included; None where the layout is not settled."""
        return None if self.cost is None else self.cost(self.size, with_defaults(self.options, options), head_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One shape of a modifier's value: what stands first, and what may follow. `rivals` exclude one another."""

    head: Domain
    options: tuple[Option, ...] = ()
    rivals: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModifierSpec:
    """A key beside ctk and ctv.

    `sides` is "each" where NAME sets both sides and NAME_k and NAME_v one of them, "k" for keys only, "both" for the
    whole cache. `needs` is what the configuration must hold for the modifier to act at all.
    """

    name: str
    forms: tuple[Form, ...]
    sides: Sides
    needs: Need
    description: str
    backends: tuple[str, ...] = ()
    planned: tuple[str, ...] = ("mlx",)

    @property
    def default(self) -> str:
        """The value that means nothing was asked: the first word of the first form."""
        return self.forms[0].head.words[0]

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that set it, the one for both sides first."""
        return (self.name, f"{self.name}_k", f"{self.name}_v") if self.sides == "each" else (self.name,)

    def form(self, head: str) -> Form | None:
        """The form whose first part can be `head`."""
        return next((form for form in self.forms if form.head.accepts(head)), None)


def with_defaults(options: Iterable[Option], given: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Every option's value, `given` over the defaults."""
    return {option.name: option.default for option in options} | dict(given)


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
    return [f"{label}:{name}={value} {planned}" for name, value in given if name not in built]


def _whole(low: int = 0, *words: str, prefix: str = "") -> Domain:
    def read(text: str) -> str:
        number = int(text.removeprefix(prefix))
        if number < low:
            raise ValueError(text)
        return f"{prefix}{number}"

    return Domain(words, prefix + r"\+?[0-9]{1,9}", f"{prefix}N with N a whole number from {low} up", read)


def _fraction(text: str) -> str:
    if not 0 < float(text) < 1:
        raise ValueError(text)
    return re.sub("e-0*", "e-", repr(float(text)))


def _layer_ranges(text: str) -> str:
    """Ranges sorted and merged, so that the same layers have one spelling."""
    if text.startswith("last"):
        return f"last{int(text.removeprefix('last'))}"
    spans = [(int(first), int(last or first)) for first, _, last in (part.partition("-") for part in text.split("+"))]
    if any(first > last for first, last in spans):
        raise ValueError(text)
    merged: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if merged and first <= merged[-1][1] + 1:
            first, last = merged[-1][0], max(merged.pop()[1], last)
        merged.append((first, last))
    return "+".join(str(first) if first == last else f"{first}-{last}" for first, last in merged)


_SPAN = "[0-9]{1,4}(-[0-9]{1,4})?"
_LAYERS = Domain(
    (), rf"last0*[1-9][0-9]{{0,3}}|{_SPAN}(\+{_SPAN})*", "lastN or ranges such as 0-3+24-27", _layer_ranges
)


def _choice(name: str, *words: str, **rest: Any) -> Option:
    """An option that is one of a few words, the default first."""
    return Option(name=name, domain=Domain(words), default=words[0], **rest)


def _count(name: str, default: int, low: int = 0, **rest: Any) -> Option:
    return Option(name=name, domain=_whole(low), default=str(default), **rest)


def _between(*words: str) -> Domain:
    return Domain(words, r"\+?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]{1,3})?", "a number between 0 and 1", _fraction)


def _share(name: str, default: str, *words: str) -> Option:
    return Option(name=name, domain=_between(*words), default=default)


def _form(*words: str, options: tuple[Option, ...] = (), rivals: tuple[str, ...] = ()) -> Form:
    return Form(head=Domain(words), options=options, rivals=rivals)


def _formats(family: str, sizes: Iterable[int], description: str, cost: Cost | None, **rest: Any) -> list[FormatSpec]:
    """The family's formats, one a size; size 0 is a format on its own."""
    return [
        FormatSpec(name=f"{family}{n or ''}", family=family, size=n, description=description, cost=cost, **rest)
        for n in sizes
    ]


def _fixed(name: str, bits: float, description: str, dense: bool = False) -> list[FormatSpec]:
    return _formats(name, [0], description, lambda *_: float(bits), dense=dense)


def _turbo_cost(size: int, options: Options, head_dim: int) -> float:
    """One fp16 norm a vector, and with prod a second one of the residual."""
    return size + 16 * (1 + int(options["prod"])) / head_dim


def _polar_cost(_: int, options: Options, __: int) -> float:
    """Level i of L stores 2^(L-i) angles for every 2^L values, which share one fp16 radius."""
    bits = [int(level) for level in options["bits"].split("-")]
    return float(sum(b << len(bits) - i for i, b in enumerate(bits, 1)) + 16) / (1 << len(bits))


def _rfsn_cost(size: int, options: Options, _: int) -> float:
    """Whole codes in a 32-bit word, and a 32-bit scale a group."""
    return 32 / (32 // size) + 32 / int(options["g"])


def _minmax_cost(size: int, options: Options, head_dim: int) -> float:
    return size + 32 / (head_dim if options["g"] == "head" else int(options["g"]))


def _nuq_cost(size: int, options: Options, head_dim: int) -> float:
    """Codes, and of every outlier the fp16 value and the place in its head; codebooks are negligible."""
    return size + float(options["outliers"]) * (16 + ceil(log2(head_dim)))


def _polar_complaint(_: int, options: Options) -> str:
    count = str(options["bits"].count("-") + 1)
    return "" if count == options["levels"] else f"bits={options['bits']} has {count} levels, not {options['levels']}"


def _turbo_complaint(size: int, options: Options) -> str:
    return "codebook=legacy4 has 4 bits" if options["codebook"] == "legacy4" and size != 4 else ""


def _minmax_complaint(_: int, options: Options) -> str:
    over_tokens = options["axis"] == "channel" and options["g"] == "head"
    return "axis=channel groups tokens and g=head channels" if over_tokens else ""


_AFFINE = (_choice("g", "64", "32", "128", backends=("mlx",)),)
_FP8 = (_choice("scale", "none", "head", backends=("mlx",)),)
_TURBO = (
    _choice("codebook", "normal", "sphere", "legacy4", backends=("mlx",)),
    _choice("scale", "matched", "none", "eden", "ls", backends=("mlx",)),
    _choice("prod", "0", "1", sides=("k",)),  # 5.7 times the error of plain codes on V
)
_LEVELS = Domain((), "[1-8](-[1-8]){0,7}", "the bits of each level, as in 4-2-2-2")
_POLAR = (
    _count("levels", 4, 1, backends=("mlx",)),
    Option(name="bits", domain=_LEVELS, default="4-2-2-2", backends=("mlx",)),
    _choice("angles", "opt", "uniform", backends=("mlx",)),
)
_HYBRID = (_share("ratio", "0.65"), _count("bits", 4, 1))
_RFSN = (_choice("g", "32", "64", backends=("mlx",)),)
_MINMAX = (_choice("axis", "token", "channel"), _choice("g", "32", "64", "128", "head", backends=("mlx",)))
_NUQ = (_choice("axis", "channel", "token"), _share("outliers", "0", "0"))

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
    _formats("hybridpc", [0], "polar and plain", None, options=_HYBRID),
    _formats("rfsn", range(2, 9), "RFSN symmetric groups", _rfsn_cost, options=_RFSN),
    _formats("minmax", (2, 3, 4, 8), "KIVI min/max", _minmax_cost, options=_MINMAX, complaint=_minmax_complaint),
    _formats("nuq", (2, 3, 4), "KVQuant", _nuq_cost, options=_NUQ),
)
FORMATS: Mapping[str, FormatSpec] = MappingProxyType({spec.name: spec for entry in _CATALOGUE for spec in entry})

_OFF, _ON, _NONE, _SOME = _form("0"), _form("1"), _form("none"), Form(head=_whole(1))
_KEEP = (_share("keep", "0.9"), _count("budget", 0))  # a budget in tokens replaces keep unless it is 0
_TRIATTENTION = (
    _choice("v", "3", "1", "2"),
    *_KEEP,
    _count("window", 128),
    _count("prefix", 128),
    _count("segments", 8, 1),
    _count("every", 128, 1),
    _count("warmup", 256),
    _count("calib", 1024, 1),
    _choice("agg", "mean", "max"),
    _choice("norm", "0", "1"),
    _choice("mode", "global", "union"),
    _choice("order", "paper", "fork"),
)
_BLOCK = (
    *(_count("size", 64, 1), _share("ratio", "0.5"), _count("sink", 1), _count("recent", 2)),
    _choice("score", "mean", "jl"),
)
_QJL = (Option(name="m", domain=_whole(1, "d"), default="d"),)
_TO = _choice("to", "turbo2", *(name for name, spec in FORMATS.items() if not spec.dense and name != "turbo2"))
_EVICT = (
    _NONE,
    _form("triattention", options=_TRIATTENTION, rivals=("keep", "budget")),
    _form("recency", options=(_count("sink", 4), *_KEEP), rivals=("keep", "budget")),
    _form("random", options=_KEEP, rivals=("keep", "budget")),
)
_BOUNDARY = (_OFF, Form(head=_whole(1), options=(_choice("type", "f16", "q8_0", backends=("mlx",)),)))
_DECAY = Form(head=_whole(1, prefix="age="), options=(_TO,))
# auto: whatever the format asks for, which for turbo is wht, or haar where the head dimension is no power of two
_ROTATIONS = ("auto", "none", "wht", "wht64", "haar", "iso", "iso_fast", "rotor")

_ROWS: tuple[tuple[str, tuple[Form, ...], Sides, Need, str], ...] = (
    ("rot", (_form(*_ROTATIONS),), "each", "a compressed side", "rotation before storing"),
    ("seed", (_OFF, _SOME), "both", "a rotation, a sketch or a random choice", "seed of whatever is random"),
    ("qjl", (_OFF, _form("gauss", "orth", options=_QJL)), "k", "a compressed K", "1-bit sketch of the residual"),
    ("kmean", (_OFF, _ON), "k", "a compressed K", "keys less their running mean"),
    ("kbias", (_OFF, _ON), "k", "a compressed K", "keys less the rotated key bias"),
    ("kcal", (_OFF, _SOME), "k", "a rotated K", "scales from N calibration tokens"),
    ("prerope", (_OFF, _ON), "k", "a compressed K", "keys before RoPE"),
    ("boundary", _BOUNDARY, "each", "a compressed side of another type", "first and last N KV layers f16"),
    ("layers", (_form("all"), Form(head=_LAYERS)), "both", "a compressed side", "layers to compress"),
    ("residual", (_OFF, _SOME), "both", "a compressed side", "newest N tokens kept f16"),
    ("sink", (_OFF, _SOME), "both", "a compressed side", "first N tokens kept f16"),
    ("prefill", (_form("quant", "raw"),), "both", "a compressed side", "raw: compress when decoding"),
    ("sparsev", (_OFF, Form(head=_between())), "both", "", "drop smaller attention weights"),
    ("select", (_NONE, _form("block", options=_BLOCK)), "both", "", "read only the best blocks"),
    ("evict", _EVICT, "both", "", "drop tokens between forwards"),
    ("decay", (_NONE, _DECAY), "both", "a side of another type", "old tokens in a smaller format"),
)
_STATUS: Mapping[str, Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "boundary": {"backends": ("mlx",), "planned": ("vllm",)},  # vLLM: kv_cache_dtype_skip_layers
        "rot": {"backends": ("mlx",), "planned": ("llamacpp",)},  # llama.cpp: LLAMA_ATTN_ROT_DISABLE and its overrides
        "seed": {"backends": ("mlx",), "planned": ()},
        "layers": {"backends": ("mlx",), "planned": ()},
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
