"""Prints what an SGLang installation is and takes, as one line of JSON; run by the interpreter that has it.

Not to be imported: it stands outside the package, whose other files must not hide modules of the engine's environment.
"""

import argparse
import json
import sys

sys.path.pop(0)


def _kind(action: argparse.Action) -> str:
    """How a value is written: after the flag, several after it, or not at all."""
    if isinstance(action, argparse.BooleanOptionalAction):
        return "on-off"
    if action.nargs == 0:
        return "flag"
    return "many" if action.nargs in ("+", "*") else "one"


def _device() -> str:
    import torch

    for name in ("cuda", "xpu", "hpu", "npu", "musa", "mps"):
        module = getattr(torch, name, None) or getattr(torch.backends, name, None)
        if module is not None and module.is_available():
            return name
    return "cpu"


def main() -> None:
    """Writes the line."""
    import sglang
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser(add_help=False)
    ServerArgs.add_cli_args(parser)
    arguments = {}
    for action in parser._actions:
        number = action.type.__name__ if action.type in (int, float) else ""
        choices = [str(choice) for choice in action.choices] if action.choices else []
        for flag in action.option_strings:
            if flag.startswith("--") and not flag.startswith("--no-"):
                name = flag[2:].replace("-", "_")
                kind = {"flag": flag, "kind": _kind(action), "number": number, "choices": choices}
                arguments[name] = {**kind, "same": action.dest}
    found = {"version": sglang.__version__, "device": _device(), "arguments": arguments}
    sys.stdout.write("\n" + json.dumps(found) + "\n")


main()
