"""`refract engines build-llamacpp`: builds the programs of an engine from source into the cache folder."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from refract.cli.options import add_cache_dir, positive
from refract.cli.output import emit, say

if TYPE_CHECKING:
    from refract.cli.parser import Commands


def add_parser(commands: Commands) -> None:
    """Adds `engines` to the commands."""
    summary = "build an engine from source"
    text = "Builds an engine from source into the cache folder; the folder of its programs is printed on stdout."
    parser = commands.add_parser("engines", help=summary, description=text)
    parser.add_argument("action", choices=["build-llamacpp"], help="what to do")
    parser.add_argument("--patched", action="store_true", help="with the patches of llama-cpp-patches")
    parser.add_argument("--jobs", type=positive, metavar="N", help="compile so many files at once (default: all cores)")
    add_cache_dir(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Builds llama.cpp, or finds it built; its folder is printed on stdout. Returns 0."""
    from refract.backends.llamacpp.build import RELEASE, Builder
    from refract.data.shipped import shipped
    from refract.run.cache import cache_folder

    patches = sorted(shipped("llama-cpp-patches").glob("*.patch")) if args.patched else []
    builder = Builder(cache=cache_folder(args.cache_dir), patches=tuple(patches), jobs=args.jobs or 0, say=say)
    built = builder.build()
    say(f"llama.cpp b{RELEASE} is {'built' if built.fresh else 'already built'}; name its folder with --llama-bin")
    emit(f"{built.folder}\n")
    return 0
