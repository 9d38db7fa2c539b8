"""`refract formats`: the catalogue of KV formats, modifiers and aliases, and which backend implements what."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from refract.format_spec import FormatSpec, ModifierSpec, Option
from refract.formats import BACKENDS, FORMATS, MODIFIERS, NAMED_ALIASES

if TYPE_CHECKING:
    from rich.table import Table

_HEAD_DIM = 128
_SHORT = {"llamacpp": "llama"}
_LEGEND = f"""\
bits  stored per value at head dimension {_HEAD_DIM}, scales and norms included
yes   implemented; plan: not implemented yet; -: does not exist there
K V   for a modifier: NAME sets both sides, NAME_k and NAME_v one of them
(x)   options, written FORMAT:option=value; --json lists their values"""
_TURBO_ALIASES = {
    "turboNvM": "ctk=turboN,ctv=turboM",
    "turbo0vM": "ctk=f16,ctv=turboM",
    "turbo8vM": "ctk=affine8,ctv=turboM",
}


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Adds `formats` to the commands."""
    summary = "list KV formats, modifiers and aliases"
    parser = subparsers.add_parser("formats", help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
    parser.add_argument("--backend", choices=BACKENDS, help="only what this backend has or is to have")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the catalogue to stdout; returns 0."""
    backends = (args.backend,) if args.backend else BACKENDS
    if args.json:
        sys.stdout.write(json.dumps(_document(backends), indent=2) + "\n")
        return 0
    from rich.console import Console

    console = Console(highlight=False)
    tables = (_format_table(backends), _modifier_table(backends), *(() if args.backend else (_alias_table(),)))
    for table in filter(lambda table: table.row_count, tables):
        console.print(table, "")
    console.print(_LEGEND)
    return 0


def _status(spec: FormatSpec | ModifierSpec, backend: str) -> str:
    return "yes" if backend in spec.backends else "plan" if backend in spec.planned else "-"


def _known(spec: FormatSpec | ModifierSpec, backends: tuple[str, ...]) -> bool:
    return any(_status(spec, backend) != "-" for backend in backends)


def _table(title: str, *columns: str) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for column in columns[:-1]:
        table.add_column(column, no_wrap=True, justify="right" if column == "bits" else "left")
    table.add_column(columns[-1])
    return table


def _format_table(backends: tuple[str, ...]) -> Table:
    headings = [_SHORT.get(backend, backend) for backend in backends]
    table = _table("Formats", "name", "bits", "side", *headings, "what")
    for spec in FORMATS.values():
        if _known(spec, backends):
            bits = spec.bits_per_value(head_dim=_HEAD_DIM)
            states = [_status(spec, backend) for backend in backends]
            sides = " ".join(spec.sides).upper()
            table.add_row(spec.name, "?" if bits is None else f"{bits:.3f}", sides, *states, _described(spec))
    return table


def _described(spec: FormatSpec) -> str:
    names = ", ".join(option.name for option in spec.options)
    return f"{spec.description} ({names})" if names else spec.description


def _modifier_table(backends: tuple[str, ...]) -> Table:
    headings = [_SHORT.get(backend, backend) for backend in backends]
    table = _table("Modifiers", "key", "default", "side", *headings, "what")
    for spec in MODIFIERS.values():
        if _known(spec, backends):
            states = [_status(spec, backend) for backend in backends]
            sides = {"each": "K V", "k": "K", "both": "both"}[spec.sides]
            table.add_row(spec.name, spec.default, sides, *states, spec.description)
    return table


def _alias_table() -> Table:
    table = _table("Aliases", "alias", "stands for")
    for alias, meaning in {**_TURBO_ALIASES, **NAMED_ALIASES}.items():
        table.add_row(alias, meaning.replace(",", ", "))
    return table


def _document(backends: tuple[str, ...]) -> dict[str, Any]:
    """The catalogue as JSON; an option's or key's `values` are words, `expected` says what else it takes."""
    return {
        "schema": "refract.formats/1",
        "head_dim": _HEAD_DIM,
        "formats": [
            {
                "name": spec.name,
                "description": spec.description,
                "bits_per_value": spec.bits_per_value(head_dim=_HEAD_DIM),
                "sides": spec.sides,
                "options": [_option(option) for option in spec.options],
                "backends": {backend: _status(spec, backend) for backend in backends},
            }
            for spec in FORMATS.values()
            if _known(spec, backends)
        ],
        "modifiers": [
            {
                "keys": spec.keys,
                "description": spec.description,
                "default": spec.default,
                "sides": spec.sides,
                "needs": spec.needs or None,
                "forms": [
                    {"expected": form.head.expected, "options": [_option(option) for option in form.options]}
                    for form in spec.forms
                ],
                "backends": {backend: _status(spec, backend) for backend in backends},
            }
            for spec in MODIFIERS.values()
            if _known(spec, backends)
        ],
        "aliases": {**_TURBO_ALIASES, **NAMED_ALIASES},
    }


def _option(option: Option) -> dict[str, Any]:
    return {"name": option.name, "default": option.default, "expected": option.domain.expected, "sides": option.sides}
