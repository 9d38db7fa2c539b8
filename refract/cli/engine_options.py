"""The options that say which engine runs and how, and the mapping an engine is made with."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from refract.cli.options import key_value, positive
from refract.cli.parser import long_name
from refract.errors import UsageError

if TYPE_CHECKING:
    from refract.cli.parser import Parser

# Options of this command line that become options of the engine, under the names engines know them by.
_NAMED = ("parallel", "llama_bin", "llama_extra_flags", "batch")
_RENAMED = {"llama_extra_flags": "extra_flags"}


def add_engine_options(parser: Parser, group: argparse._ActionsContainer) -> None:
    """Adds them to a group of the parser, or to the parser itself."""
    group.add_argument("--backend", metavar="NAME", help="the engine (default: mlx)")
    text = "requests in flight at once; what more than 1 costs in exactness, the report says"
    group.add_argument("--parallel", type=positive, metavar="N", help=text)
    text = "the folder that holds llama-server and llama-perplexity"
    option = group.add_argument("--llama-bin", metavar="DIR", help=text)
    parser.rename_variable(long_name(option), "REFRACT_LLAMA_BIN_DIR")
    text = "flags passed to llama-server and llama-perplexity after ours, as one text"
    group.add_argument("--llama-extra-flags", metavar="FLAGS", help=text)
    group.add_argument("--batch", type=positive, metavar="N", help="prompts decoded at once (default: the engine's)")
    text = "an option of the engine itself; repeat it for several"
    group.add_argument("--engine-arg", action="append", type=key_value, default=[], metavar="KEY=VALUE", help=text)


def engine_options(args: argparse.Namespace) -> dict[str, str]:
    """The engine's own options as a mapping. Raises: UsageError for a key given twice."""
    named = {_RENAMED.get(name, name): getattr(args, name) for name in _NAMED}
    every = [*args.engine_arg, *((name, str(value)) for name, value in named.items() if value is not None)]
    options = dict(every)
    if len(options) < len(every):
        keys = [key for key, _ in every]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise UsageError(f"the engine option {twice} is given twice", hint="keep one of them")
    return options
