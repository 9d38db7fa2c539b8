"""The KV-configuration language: `parse_kv` reads it strictly, `str(config)` is its canonical text.

A configuration is `ctk=FORMAT,ctv=FORMAT` and modifiers, comma-separated, in any order, upper or lower case. The
canonical text has a fixed order and one spelling of numbers, neither defaults nor aliases, and names a modifier of both
sides for the sides it acts on. Precedence: option on the type > `NAME_k`/`NAME_v` > NAME > default.
What the words are is the catalogue's business (`refract.formats`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NoReturn

from refract.errors import KVSyntaxError, KVUnsupportedError
from refract.format_spec import FormatSpec, ModifierSpec, Need, Option, with_defaults
from refract.formats import ALIASES, FORMATS, KEYS, MODIFIERS, ROT

_SIDE_KEYS = ("ctk", "ctv")
_KNOWN = (*_SIDE_KEYS, *KEYS)
_CATALOGUE = "`refract formats` lists every format, key and alias"


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A storage format of one side; `options` are those that differ from their defaults, in catalogue order."""

    name: str
    options: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return ":".join((self.name, *(f"{name}={value}" for name, value in self.options)))

    @property
    def spec(self) -> FormatSpec:
        """The catalogue entry."""
        return FORMATS[self.name]

    @property
    def compressed(self) -> bool:
        """Whether it stores fewer than 16 bits a value."""
        return not self.spec.dense

    def option(self, name: str) -> str:
        """The option's value in effect. Raises KeyError for a name the format does not have."""
        return with_defaults(self.spec.options, self.options)[name]

    def bits_per_value(self, head_dim: int) -> float | None:
        """Stored bits per value, scales and norms included; None where the layout is not settled."""
        return self.spec.bits_per_value(self.options, head_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class KVConfig:
    """What is stored of keys and values; built by `parse_kv`, equal when it means the same.

    `options` are the canonical texts of the modifiers that differ from their defaults, in catalogue order.
    """

    k: Format
    v: Format
    options: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return ",".join((f"ctk={self.k}", f"ctv={self.v}", *(f"{key}={value}" for key, value in self.options)))

    def get(self, key: str) -> str:
        """The modifier's value in effect, as canonical text such as "wht" or "2:type=q8_0".

        A modifier with sides is asked by side (`rot_k`, not `rot`). Raises KeyError for any other key.
        """
        spec = KEYS[key]
        if spec.sides == "each" and key == spec.name:
            raise KeyError(f"{key} may differ between the sides: ask for {key}_k or {key}_v")
        given = dict(self.options)
        return given.get(key, given.get(spec.name, spec.default))

    def option(self, key: str, name: str) -> str:
        """An option of the modifier's value in effect, e.g. ("evict", "keep"). Raises KeyError when it has none."""
        return _options_in(KEYS[key], self.get(key))[name]

    @property
    def boundary(self) -> tuple[int, int]:
        """(K, V) KV layers at each end that are stored as `boundary_types` instead."""
        return int(self.get("boundary_k").split(":")[0]), int(self.get("boundary_v").split(":")[0])

    @property
    def boundary_types(self) -> tuple[str, str]:
        """(K, V) names of the boundary layers' formats; f16 where there are none."""
        k, v = (_options_in(KEYS[key], self.get(key)).get("type", "f16") for key in ("boundary_k", "boundary_v"))
        return k, v

    def layers(self, count: int) -> frozenset[int]:
        """The KV layers, of `count`, that are compressed at all.

        Raises: KVUnsupportedError when `layers` names some that are not there, or every one.
        """
        text = self.get("layers")
        if text == "all":
            return frozenset(range(count))
        last = text.removeprefix("last")
        spans = [(count - int(last), count - 1)] if last != text else _spans(text)
        named = frozenset(layer for first, end in spans for layer in range(first, end + 1))
        if min(named) < 0 or max(named) >= count:
            message = f"layers={text} names layers that are not there: the model has {count} KV layers"
            raise KVUnsupportedError(message, hint=f"name layers from 0 to {count - 1}")
        if len(named) == count:
            message = f"layers={text} cannot act: these are all of the model's {count} KV layers"
            raise KVUnsupportedError(message, hint="leave layers out")
        return named

    def own_layers(self, count: int) -> tuple[frozenset[int], frozenset[int]]:
        """(K, V) KV layers, of `count`, that are stored as `ctk` and `ctv` say: neither spared nor boundary layers.

        Raises: KVUnsupportedError as `layers` does, and when there is none.
        """
        chosen = self.layers(count)
        sides = [
            frozenset(layer for layer in chosen if min(layer, count - 1 - layer) >= boundary)
            for boundary in self.boundary
        ]
        for side, boundary, own in zip("kv", self.boundary, sides, strict=True):
            if not own:
                of = "" if len(chosen) == count else f" of layers={self.get('layers')}"
                message = f"boundary_{side}={boundary} leaves no layer{of} as ct{side} says"
                raise KVUnsupportedError(message, hint=f"the model has {count} KV layers: use a smaller boundary")
        return sides[0], sides[1]

    @property
    def seed(self) -> int:
        """The seed of rotations, sketches and random choices."""
        return int(self.get("seed"))

    @property
    def is_reference_like(self) -> bool:
        """Whether both sides keep 16 bits or more and nothing modifies them."""
        return not (self.k.compressed or self.v.compressed or self.options)


def _spans(text: str) -> list[tuple[int, int]]:
    """The ranges of canonical text such as 0-3+7, ends included."""
    return [(int(first), int(end or first)) for first, _, end in (part.partition("-") for part in text.split("+"))]


def parse_kv(text: str) -> KVConfig:
    """The configuration that `text` stands for.

    Raises:
        KVSyntaxError: it does not parse or names something unknown; the hint says what may have been meant.
        KVUnsupportedError: it parses, but a part of it could not act or is not for its side.
    """
    given = _items(_normal(text))
    for key in _SIDE_KEYS:
        if key not in given:
            hint = f"add {key}=f16 to leave {key[-1].upper()} uncompressed"
            raise KVSyntaxError(f"{key} is missing: expected both ctk=… and ctv=…", hint=hint)
    values = {key: _modifier(key, value) for key, value in given.items() if key in KEYS}
    k, v = (_format(key, given[key], values) for key in _SIDE_KEYS)
    config = KVConfig(k=k, v=v, options=tuple(_in_order(values, k, v)))
    for key, value in config.options:
        if KEYS[key].sides != "each":
            _must_act(key, value, config, f"K is {k} and V is {v}")
    return config


def _normal(text: str) -> str:
    """Lower case, without the white space that is tolerated around items, `=` and `:`."""
    tight = re.sub(r"\s*([,=:])\s*", r"\1", text.strip())
    if not tight:
        raise KVSyntaxError("the KV configuration is empty: expected ctk=…,ctv=…", hint="write ctk=q8_0,ctv=q8_0")
    if stray := re.search(r"[^A-Za-z0-9_.+:=,/-]", tight):
        message = f"unexpected {stray.group()!a} in a KV configuration: expected key=value items joined by commas"
        raise KVSyntaxError(message, hint="write ctk=q8_0,ctv=q8_0")
    return tight.lower()


def _items(text: str) -> dict[str, str]:
    """The value text of every key, aliases expanded."""
    found: dict[str, str] = {}
    for item in text.split(","):
        for part in _expanded(item).split(","):
            key, _, value = part.partition("=")
            if key in found:
                by = "" if part == item else f", here by {item}"
                raise KVSyntaxError(f"{key} is given twice{by}", hint=f"keep one of {key}={found[key]} and {part}")
            found[key] = value
    return found


def _expanded(item: str) -> str:
    """The item itself, or what it is an alias of."""
    key, equals, value = item.partition("=")
    if item in ALIASES:
        return ALIASES[item]
    if not item:
        raise KVSyntaxError("empty item: expected key=value between commas", hint="remove the extra comma")
    if not equals and key not in _KNOWN:
        _refuse_bare(item)
    if key not in _KNOWN:
        _refuse_key(key)
    if not value:
        raise KVSyntaxError(f"{key} has no value: expected {_expected(key)}", hint=_CATALOGUE)
    return item


def _refuse_bare(item: str) -> NoReturn:
    sides = item.split("/")
    if len(sides) <= 2 and all(side.split(":")[0] in FORMATS for side in sides):
        hint = f"write ctk={sides[0]},ctv={sides[-1]}"
        raise KVSyntaxError(f"{item} says no side: expected ctk=… and ctv=…", hint=hint)
    closest = _closest(item, [*(alias for alias in ALIASES if "=" not in alias), *FORMATS])
    meant = f"ctk={closest},ctv={closest}" if closest in FORMATS else closest
    raise KVSyntaxError(f"{item} is neither key=value nor an alias", hint=_did_you_mean(meant))


def _refuse_key(key: str) -> NoReturn:
    stem = key.removesuffix("_k").removesuffix("_v")
    if spellings := [alias for alias in ALIASES if alias.startswith(f"{key}=")]:
        raise KVSyntaxError(f"{key} has another value: expected {' or '.join(spellings)}", hint=f"write {spellings[0]}")
    if stem in MODIFIERS:
        acts_on = {"k": "keys only", "both": "the whole cache"}.get(MODIFIERS[stem].sides, "")
        raise KVSyntaxError(f"unknown key {key}: {stem} acts on {acts_on}", hint=f"write {stem}=…")
    raise KVSyntaxError(f"unknown key {key or 'before ='}", hint=_did_you_mean(_closest(key, _KNOWN)))


def _expected(key: str) -> str:
    return " or ".join(form.head.expected for form in KEYS[key].forms) if key in KEYS else "a format such as q8_0"


def _format(key: str, text: str, values: dict[str, str]) -> Format:
    """The format of one side; a rotation written on it goes to `values`, over `rot_k` or `rot_v`."""
    name, *rest = text.split(":")
    spec, side = FORMATS.get(name), key[-1]
    if spec is None:
        sizes = [other.name for other in FORMATS.values() if other.family == name]
        hint = f"write one of {', '.join(sizes)}" if sizes else _did_you_mean(_closest(name, FORMATS))
        raise KVSyntaxError(f"unknown format {name} in {key}={text}", hint=hint)
    owner = f"{key}={name}"
    given = _options(owner, (*spec.options, ROT), rest)
    if ROT.name in given:
        values[f"{ROT.name}_{side}"] = given.pop(ROT.name)
    kept = _kept(spec.options, given)
    if complaint := spec.complaint(spec.size, with_defaults(spec.options, kept)):
        raise KVSyntaxError(f"{owner} has options that exclude each other: {complaint}", hint=_CATALOGUE)
    for option in spec.options:
        if option.name in dict(kept) and side not in option.sides:
            message = f"{owner}:{option.name}={given[option.name]} cannot be: {option.name} is for K only"
            raise KVUnsupportedError(message, hint=f"leave {option.name} out of {key}")
    return Format(name=name, options=kept)


def _modifier(key: str, text: str) -> str:
    """The canonical text of a modifier's value."""
    head, *rest = text.split(":")
    form = KEYS[key].form(head)
    if form is None:
        words = [word for other in KEYS[key].forms for word in other.head.words]
        message = f"{key}={head} is not possible: expected {_expected(key)}"
        raise KVSyntaxError(message, hint=_did_you_mean(_closest(head, words)))
    owner = f"{key}={head}"
    given = _options(owner, form.options, rest)
    if form.rivals and given.keys() >= set(form.rivals):
        names = " and ".join(form.rivals)
        raise KVSyntaxError(f"{owner} has both {names}: expected one of them", hint=f"remove one of {names}")
    return str(Format(name=form.head.canonical(head), options=_kept(form.options, given)))


def _options(owner: str, options: Sequence[Option], texts: Iterable[str]) -> dict[str, str]:
    """The canonical values of the options that are written."""
    known = {option.name: option for option in options}
    given: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if name not in known:
            expected = f"expected {', '.join(known)}" if known else "it takes none"
            meant = [f"{other.name}={name}" for other in options if name and not equals and name in other.domain.words]
            hint = _did_you_mean(meant[0] if meant else _closest(name, known))
            raise KVSyntaxError(f"{owner} has no option {name or 'without a name'}: {expected}", hint=hint)
        domain = known[name].domain
        if name in given:
            raise KVSyntaxError(f"{owner} has the option {name} twice", hint=f"keep one {name}=…")
        if not domain.accepts(value):
            hint = _did_you_mean(_closest(value, domain.words))
            raise KVSyntaxError(f"{owner}:{name}={value} is not possible: expected {domain.expected}", hint=hint)
        given[name] = domain.canonical(value)
    return given


def _kept(options: Iterable[Option], given: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """What differs from the defaults, in catalogue order."""
    every = with_defaults(options, given.items())
    return tuple((option.name, every[option.name]) for option in options if every[option.name] != option.default)


def _in_order(values: Mapping[str, str], k: Format, v: Format) -> Iterator[tuple[str, str]]:
    """The modifiers that differ from their defaults, each under the shortest key, in catalogue order."""
    for spec in MODIFIERS.values():
        pairs = {spec.name: values.get(spec.name, spec.default)}
        if spec.sides == "each":
            pairs = _by_side(spec, values, {"k": k, "v": v})
        yield from ((key, value) for key, value in pairs.items() if value != spec.default)


def _by_side(spec: ModifierSpec, values: Mapping[str, str], sides: Mapping[str, Format]) -> dict[str, str]:
    """Each side's value: its own, else the shared one where that can act."""
    shared = values.get(spec.name, spec.default)
    acting = [side for side, stored in sides.items() if _acts(spec, shared, KVConfig(k=stored, v=stored))]
    found = {side: f"{side.upper()} is {stored}" for side, stored in sides.items()}
    if shared != spec.default and not acting:
        _refuse_idle(spec.name, shared, " and ".join(found.values()))
    resolved = {}
    for side, stored in sides.items():
        key = f"{spec.name}_{side}"
        resolved[key] = values.get(key, shared if side in acting else spec.default)
        if key in values and resolved[key] != spec.default:
            _must_act(key, resolved[key], KVConfig(k=stored, v=stored), found[side])
    return resolved if len(set(resolved.values())) > 1 else {spec.name: next(iter(resolved.values()))}


def _must_act(key: str, value: str, config: KVConfig, found: str) -> None:
    if not _acts(KEYS[key], value, config):
        _refuse_idle(key, value, found)


def _refuse_idle(key: str, value: str, found: str) -> NoReturn:
    message = f"{key}={value} cannot act: it needs {KEYS[key].needs}, but {found}"
    raise KVUnsupportedError(message, hint=f"leave {key} out, or compress what it acts on")


def _acts(spec: ModifierSpec, value: str, config: KVConfig) -> bool:
    return _ACTS[spec.needs](config, _options_in(spec, value))


def _options_in(spec: ModifierSpec, value: str) -> dict[str, str]:
    head, *rest = value.split(":")
    form = spec.form(head)
    pairs = [(name, text) for name, _, text in (option.partition("=") for option in rest)]
    return with_defaults(form.options if form else (), pairs)


def _rotated(config: KVConfig, side: str) -> bool:
    stored, rotation = (config.k if side == "k" else config.v), config.get(f"rot_{side}")
    return stored.compressed and (stored.spec.rotated if rotation == "auto" else rotation != "none")


def _random(config: KVConfig) -> bool:
    chosen = config.get("evict").startswith(("random", "triattention")) or "score=jl" in config.get("select")
    return chosen or config.get("qjl") != "0" or any(_rotated(config, side) for side in "kv")


_ACTS: Mapping[Need, Callable[[KVConfig, Mapping[str, str]], bool]] = MappingProxyType(
    {
        "": lambda config, options: True,
        "a compressed side": lambda config, _: config.k.compressed or config.v.compressed,
        "a compressed side of another type": lambda config, options: any(
            stored.compressed and str(stored) != options.get("type") for stored in (config.k, config.v)
        ),
        "a side of another type": lambda config, options: {str(config.k), str(config.v)} != {options.get("to")},
        "a compressed K": lambda config, _: config.k.compressed,
        "a rotated K": lambda config, _: _rotated(config, "k"),
        "a rotation, a sketch or a random choice": lambda config, _: _random(config),
    }
)


def _did_you_mean(word: str | None) -> str:
    return f"did you mean {word}?" if word else _CATALOGUE


def _closest(word: str, known: Iterable[str]) -> str | None:
    """The known word most like `word`: its letters transposed, then the most in common, then the nearest number."""
    from difflib import SequenceMatcher  # costs the start of every command 3 ms

    def likeness(other: str) -> tuple[bool, float, int]:
        numbers = zip(re.findall("[0-9]{1,3}", word), re.findall("[0-9]{1,3}", other), strict=False)
        common = SequenceMatcher(None, word, other).ratio()
        return sorted(word) == sorted(other), common, -sum(abs(int(a) - int(b)) for a, b in numbers)

    best = max(known, key=likeness, default="") if len(word) <= 40 else ""
    alike = likeness(best)[1] >= 0.6 or (len(word) > 1 and best.startswith(word))
    return best if best and alike else None
