"""The user's own engine arguments, read by vLLM's own parser, with what a measurement needs laid over them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any


class ArgumentError(Exception):
    """An argument that vLLM does not take."""


def engine_arguments(given: Mapping[str, str], ours: Mapping[str, Any]) -> Any:
    """vLLM's EngineArgs: `given` as on its command line, `ours` as values.

    Raises: ArgumentError with vLLM's own words.
    """
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = EngineArgs.add_cli_args(FlexibleArgumentParser(add_help=False))

    def refuse(message: str) -> None:
        raise ArgumentError(message)

    parser.error = refuse
    try:
        read = parser.parse_args(_command_line(parser, given))
        return EngineArgs.from_cli_args(argparse.Namespace(**{**vars(read), **ours}))
    except (ValueError, TypeError) as error:
        raise ArgumentError(str(error)) from None


def _command_line(parser: argparse.ArgumentParser, given: Mapping[str, str]) -> list[str]:
    """key=value as flags: yes-or-no ones have a form of their own."""
    line = []
    for name, value in given.items():
        flag = "--" + name.replace("_", "-")
        action = parser._option_string_actions.get(flag)
        if isinstance(action, argparse.BooleanOptionalAction) and value.lower() in ("true", "false"):
            line.append(flag if value.lower() == "true" else f"--no-{flag[2:]}")
        else:
            line.append(f"{flag}={value}")
    return line
