"""docs/kv-formats.md, made from the catalogue; `page` is the text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from refract.format_spec import FormatSpec, ModifierSpec, Option
from refract.formats import ALIASES, BACKENDS, FORMATS, MODIFIERS, NAMED_ALIASES

_DIMS = (64, 128)
_MADE = "<!-- Made from the catalogue, refract/formats.py; edits are lost. -->\n"
_INTRO = """\
A configuration names a format for keys and one for values, and modifiers: `ctk=q8_0,ctv=turbo4,boundary_v=2`. Options
follow the format after colons: `turbo4:scale=eden`. Bits are stored bits per value, scales and norms included, at head
dimensions 64 and 128. An engine is named where the format or modifier works today; `refract formats` shows what is
planned.

KL is the mean divergence in nats a token from f16 where keys and values are both stored so: SmolLM2-135M-Instruct on
the mlx engine, 512 positions of the built-in text (`python -m benchmarks.formats_kl`). Another model may order them
otherwise; [score yours](../QUICKSTART.md). Differences of a tenth are within what other text would show. `nuq` codes
128 tokens together and was measured token by token: there the newest tokens, up to 127, are still in 16 bits.
"""
# family -> (where it comes from, when to use it)
NOTES: Mapping[str, tuple[str, str]] = {
    "f16": ("IEEE 754", "the usual reference"),
    "f32": ("IEEE 754", "a reference without rounding of its own"),
    "bf16": ("bfloat16", "what servers store by default; about 60 times f16's squared error"),
    "q8_0": ("llama.cpp, ggml-quants.c", "nearly lossless; the first thing to try for keys"),
    "q5_1": ("llama.cpp, ggml-quants.c", "five bits, the better of the two for skewed values"),
    "q5_0": ("llama.cpp, ggml-quants.c", "five bits at half a bit less than q5_1"),
    "q4_1": ("llama.cpp, ggml-quants.c", "four bits with a minimum"),
    "q4_0": ("llama.cpp, ggml-quants.c", "four bits, widely supported; better with `rot=wht`"),
    "iq4_nl": ("llama.cpp, ggml-quants.c", "q4_0's size, uneven levels, less error"),
    "fp8_e4m3": ("OCP OFP8 v1.0", "what vLLM and SGLang call fp8"),
    "fp8_e5m2": ("OCP OFP8 v1.0", "fp8 with more range and four times e4m3's squared error"),
    "affine": ("mlx-lm, QuantizedKVCache", "to know what mlx-lm's own quantised cache does"),
    "turbo": (
        "TurboQuant, arXiv:2504.19874",
        "the least squared error per bit; keys too where they carry no large bias",
    ),
    "polar": ("PolarQuant, arXiv:2502.02617", "comparison: turbo3 errs 5 % more at 0.75 bits less"),
    "hybridpc": ("RFSN names it; the mix is ours", "comparison with polar and turbo at equal bits"),
    "rfsn": ("RFSN", "to reproduce its results"),
    "minmax": ("KIVI, arXiv:2402.02750; vLLM's values", "values at 4 bits; keys with large channels by `axis=channel`"),
    "nuq": (
        "KVQuant, arXiv:2401.18079",
        "with `sink=1`: the first token is unlike the others (nuq3: 0.049 nats then); with `prerope=1`, `outliers`",
    ),
}


def measured() -> Mapping[str, float]:
    """Nats a token that each format moves the default model by, for those that were measured."""
    table: Mapping[str, float] = json.loads(Path(__file__).with_name("formats_kl.json").read_text("utf-8"))
    return table


def page() -> str:
    """docs/kv-formats.md: formats with bits, source and use, their options, modifiers and aliases."""
    sections = (
        ("Formats", _table("name | bits | KL | engines | source | when to use", _formats())),
        ("Options of formats", _table("formats | option | values, the default first", _options())),
        ("Modifiers", _table("keys | values, the default first | engines | what", _modifiers())),
        ("Aliases", _table("alias | stands for", _aliases())),
    )
    body = "\n".join(f"## {title}\n\n{table}" for title, table in sections)
    return f"{_MADE}\n# KV formats\n\n{_INTRO}\n{body}"


def _table(heading: str, rows: Iterator[tuple[str, ...]]) -> str:
    lines = [tuple(heading.split(" | ")), *rows]
    texts = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines]
    return "".join([texts[0], "|---" * len(lines[0]) + "|\n", *texts[1:]])


def _formats() -> Iterator[tuple[str, ...]]:
    for spec in FORMATS.values():
        bits = [spec.bits_per_value(head_dim=dim) for dim in _DIMS]
        shown = ", ".join(dict.fromkeys("?" if b is None else f"{b:.4g}" for b in bits))
        yield f"`{spec.name}`", shown, _measured(spec.name), _engines(spec), *NOTES[spec.family]


def _measured(name: str) -> str:
    """The divergence as the table says it, to two digits."""
    found = measured().get(name)
    if found is None:
        return ""
    return f"{found:.1g}" if found < 1e-5 else f"{found:.2g}"


def _engines(spec: FormatSpec | ModifierSpec) -> str:
    return ", ".join(backend for backend in BACKENDS if backend in spec.backends) or "none yet"


def _options() -> Iterator[tuple[str, ...]]:
    families: dict[tuple[Option, ...], list[str]] = {}
    for spec in FORMATS.values():
        families.setdefault(spec.options, []).append(spec.name)
    for options, names in families.items():
        for option in options:
            yield _spread(names), f"`{option.name}`", _values(option)


def _spread(names: list[str]) -> str:
    return f"`{names[0]}` … `{names[-1]}`" if len(names) > 2 else ", ".join(f"`{name}`" for name in names)


def _values(option: Option) -> str:
    others = [word for word in option.domain.words if word != option.default]
    planned = "" if "mlx" in option.backends else "; only the default yet"
    return ", ".join(filter(None, (option.default, *others, option.domain.meaning))) + planned


def _modifiers() -> Iterator[tuple[str, ...]]:
    for spec in MODIFIERS.values():
        values = " or ".join(form.head.expected for form in spec.forms)
        yield ", ".join(f"`{key}`" for key in spec.keys), values, _engines(spec), spec.description


def _aliases() -> Iterator[tuple[str, ...]]:
    patterns = {"turboNvM": ALIASES["turbo4v4"].replace("turbo4", "turboN", 1).replace("turbo4", "turboM")}
    for alias, meaning in {**patterns, **NAMED_ALIASES}.items():
        yield f"`{alias}`", f"`{meaning}`"
