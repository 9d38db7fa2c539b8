"""The options that say which engine runs and how, and the mapping an engine is made with."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from refract.backends import DEFAULT_BACKEND
from refract.cli.options import key_value, positive
from refract.cli.parser import long_name
from refract.errors import UsageError

if TYPE_CHECKING:
    from refract.cli.parser import Parser
    from refract.kv import KVConfig

# Options of this command line that become options of the engine, under the names engines know them by.
_NAMED = ("parallel", "url", "reference_url", "candidate_url", "llama_bin", "llama_extra_flags", "batch")
_RENAMED = {"llama_extra_flags": "extra_flags"}
# Set once for all commands; they say nothing to an engine that is not llama.cpp
_VARIABLES = {"llama_bin": "REFRACT_LLAMA_BIN_DIR", "extra_flags": "REFRACT_LLAMA_EXTRA_FLAGS"}


def add_engine_options(parser: Parser, group: argparse._ActionsContainer) -> None:
    """Adds them to a group of the parser, or to the parser itself."""
    group.add_argument("--backend", metavar="NAME", help="the engine (default: mlx)")
    text = "requests in flight at once; what more than 1 costs in exactness, the report says"
    group.add_argument("--parallel", type=positive, metavar="N", help=text)
    text = "a running server; with one for both sides the run stops between them and says which to start next"
    group.add_argument("--url", metavar="URL", help=text)
    group.add_argument("--reference-url", metavar="URL", help="the running server of the reference")
    group.add_argument("--candidate-url", metavar="URL", help="the running server of the candidate")
    group.add_argument(
        "--launch", action="store_true", help="start and stop the engine's server here, one side after the other"
    )
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
    named["launch"] = "1" if args.launch else None
    if (args.backend or DEFAULT_BACKEND) != "llamacpp":
        named = {name: value for name, value in named.items() if value != os.environ.get(_VARIABLES.get(name, ""))}
    every = [*args.engine_arg, *((name, str(value)) for name, value in named.items() if value is not None)]
    options = dict(every)
    if len(options) < len(every):
        keys = [key for key, _ in every]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise UsageError(f"the engine option {twice} is given twice", hint="keep one of them")
    return options


def with_sides(options: dict[str, str], reference: KVConfig, candidates: Sequence[KVConfig]) -> dict[str, str]:
    """The options, and where one of them is the address of a server, which configuration is which side."""
    if not any(options.get(name) for name in ("url", "reference_url", "candidate_url")):
        return options
    return options | {"reference_kv": str(reference), "candidate_kv": ";".join(map(str, candidates))}
