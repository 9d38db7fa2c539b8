"""`refract score`: measures candidates against the reference and reports."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from refract.cli import presets
from refract.cli.engine_options import add_engine_options
from refract.cli.forms import add_forms
from refract.cli.options import (
    add_cache_dir,
    fractions,
    margin,
    nats,
    not_negative,
    output_file,
    positive,
    score,
    whole_numbers,
)

if TYPE_CHECKING:
    from refract.cli.parser import Commands, Parser

_DESCRIPTION = (
    "Runs a model under the reference and under each candidate KV configuration, over the same work, and reports how "
    "far the candidates move it. Stopped and run again, it goes on where it was."
)


def add_parser(commands: Commands) -> None:
    """Adds `score` to the commands."""
    parser = commands.add_parser(
        "score", help="measure KV configurations against a reference", description=_DESCRIPTION
    )
    add_run_options(parser)
    parser.set_defaults(run=run)


def add_run_options(parser: Parser) -> None:
    """Adds everything that says what is run and how it is reported."""
    add_measurement(parser)
    _add_beside(parser)
    _add_outputs(parser)


def add_measurement(parser: Parser) -> None:
    """Adds everything that says what is run."""
    _add_subject(parser)
    _add_work(parser)
    _add_engine(parser)


def _add_subject(parser: Parser) -> None:
    group = parser.add_argument_group("what is measured")
    group.add_argument(
        "--candidate",
        action="append",
        default=[],
        metavar="KV",
        help="a KV configuration such as ctk=q8_0,ctv=turbo3; repeat it for several",
    )
    text = f"the KV configuration they are compared with (default: {presets.REFERENCE})"
    group.add_argument("--reference", default=presets.REFERENCE, metavar="KV", help=text)
    text = "a GGUF file, a model folder, a hub name or a name of `refract fetch --list` (default: smollm2)"
    group.add_argument("--model", metavar="MODEL", help=text)
    text = f"what is measured, comma-separated (default: {presets.AXES})"
    group.add_argument("--axes", metavar="AXES", help=text)
    group.add_argument("--measure-floor", action="store_true", help="also measure the reference against itself")


def _add_beside(parser: Parser) -> None:
    """Adds what may be run beside the candidates."""
    group = parser.add_argument_group("beside the candidates")
    control, explain = group.add_mutually_exclusive_group(), group.add_mutually_exclusive_group()
    text = (
        "run each configuration once more under a harmless change of the engine, to tell loss from noise"
        " (unasked: the reference, on engines with noisy kernels)"
    )
    control.add_argument("--control", action="store_true", help=text)
    control.add_argument("--no-control", action="store_true", help="leave the control out")
    text = (
        "run the keys and the values of a candidate below PASS alone (unasked: 1 candidate, at most 8 windows);"
        " with layers, its layers too"
    )
    explain.add_argument("--explain", nargs="?", const="sides", choices=("sides", "layers"), help=text)
    explain.add_argument("--no-explain", action="store_true", help="never say which side carries the loss")


def _add_work(parser: Parser) -> None:
    group = parser.add_argument_group("how much, over what")
    quick, plain = presets.PRESETS["quick"], presets.PRESETS["default"]
    size = group.add_mutually_exclusive_group()
    text = f"the prompts of the tier {quick.tier} and {quick.chunks} corpus windows: a first look"
    size.add_argument("--quick", action="store_true", help=text)
    size.add_argument("--full", action="store_true", help="all bundled prompts: the narrowest intervals")
    group.add_argument(
        "--prompts", type=Path, metavar="FILE", help="own prompts, JSON lines (default: the bundled ones)"
    )
    group.add_argument("--max-prompts", type=positive, metavar="N", help="only the first N of them (default: all)")
    text = (
        "own text, a file or a folder of .txt files, or a name of `refract fetch --list` (default: the bundled corpus)"
    )
    group.add_argument("--corpus", type=Path, metavar="PATH", help=text)
    text = f"tokens generated for a prompt (default: {presets.N_PREDICT})"
    group.add_argument("--n-predict", type=positive, default=presets.N_PREDICT, metavar="N", help=text)
    text = f"windows of the corpus (default: {plain.chunks}; with --quick {quick.chunks})"
    group.add_argument("--chunks", type=positive, metavar="N", help=text)
    text = f"tokens in a window (default: {presets.CTX})"
    group.add_argument("--ctx", type=positive, default=presets.CTX, metavar="N", help=text)
    text = "also measure kld behind 1k, 4k, 16k ... N tokens of cache (default: 0, not at all)"
    group.add_argument("--depth", type=not_negative, default=0, metavar="N", help=text)
    text = f"longest prompt of the axis rniah in tokens; lengths double up to it (default: {presets.RNIAH_UP_TO})"
    group.add_argument("--rniah-up-to", type=positive, metavar="N", help=text)
    text = "the lengths themselves, comma-separated, instead of --rniah-up-to"
    group.add_argument("--rniah-lengths", type=whole_numbers, metavar="N,N", help=text)
    text = "where in a prompt its needle lies, comma-separated, 0 to 1 (default: 0.1,0.5,0.9)"
    group.add_argument("--rniah-positions", type=fractions, metavar="P,P", help=text)
    text = "needles at each length and position (default: 4, one of each kind)"
    group.add_argument("--rniah-trials", type=positive, metavar="N", help=text)
    text = "the text that needles lie in, as --corpus takes it (default: the corpus)"
    group.add_argument("--rniah-haystack", type=Path, metavar="PATH", help=text)
    group.add_argument(
        "--seed", type=not_negative, default=0, metavar="N", help="seed of all that is drawn (default: 0)"
    )


def _add_engine(parser: Parser) -> None:
    group = parser.add_argument_group("engine and cache")
    add_engine_options(parser, group)
    add_cache_dir(group)
    group.add_argument("--no-cache", action="store_true", help="neither read nor keep answers")
    text = "download the model or the corpus named, where `refract fetch` knows it and it is missing"
    group.add_argument("--fetch", action="store_true", help=text)


def _add_outputs(parser: Parser) -> None:
    group = parser.add_argument_group("report and exit code")
    text = "also write the report as JSON; with - it goes to stdout instead of the text"
    group.add_argument("--json-out", type=output_file, metavar="FILE", help=text)
    add_forms(group)
    text = "exit with 10 when a candidate's composite is below this, or has none"
    group.add_argument("--fail-under", type=score, metavar="SCORE", help=text)
    text = "exit with 10 when a candidate's mean KL divergence is above this, or unknown"
    group.add_argument("--fail-over-kld", type=nats, metavar="NATS", help=text)
    text = "exit with 10 when another candidate is not shown to lose less than --margin against this candidate"
    group.add_argument("--non-inferior-to", metavar="KV", help=text)
    text = "the loss in points of score that --non-inferior-to must rule out"
    group.add_argument("--margin", type=margin, metavar="POINTS", help=text)
    add_progress(group)


def add_progress(parser: argparse._ActionsContainer) -> None:
    """Adds --progress."""
    text = "how progress is shown on stderr: auto is a bar on a terminal, plain lines elsewhere"
    choices = ("auto", "bar", "plain", "json", "none")
    parser.add_argument("--progress", choices=choices, default="auto", help=text)


def run(args: argparse.Namespace) -> int:
    """Refuses what cannot work, measures, reports; returns 0, or 10 when a threshold is missed."""
    from refract.cli import scoring

    return scoring.score(args)
