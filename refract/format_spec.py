"""What a KV format, an option and a modifier are, and the values they take; the catalogue is `refract.formats`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

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
    and compress nothing. `rotated` ones are stored rotated unless `rot` says otherwise. `backends` implement it,
    `planned` ones are to.
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
    backends: tuple[str, ...] = ()
    planned: tuple[str, ...] = ()

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


def whole(low: int = 0, *words: str, prefix: str = "") -> Domain:
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
LAYERS = Domain((), rf"last0*[1-9][0-9]{{0,3}}|{_SPAN}(\+{_SPAN})*", "lastN or ranges such as 0-3+24-27", _layer_ranges)


def choice(name: str, *words: str, **rest: Any) -> Option:
    """An option that is one of a few words, the default first."""
    return Option(name=name, domain=Domain(words), default=words[0], **rest)


def count(name: str, default: int, low: int = 0, **rest: Any) -> Option:
    return Option(name=name, domain=whole(low), default=str(default), **rest)


def between(*words: str) -> Domain:
    return Domain(words, r"\+?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]{1,3})?", "a number between 0 and 1", _fraction)


def share(name: str, default: str, *words: str, **rest: Any) -> Option:
    return Option(name=name, domain=between(*words), default=default, **rest)


def form_of(*words: str, options: tuple[Option, ...] = (), rivals: tuple[str, ...] = ()) -> Form:
    return Form(head=Domain(words), options=options, rivals=rivals)
