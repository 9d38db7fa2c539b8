"""What this vLLM is and takes, as one line of JSON: `python -c 'from …describe import main; main()'`."""

from __future__ import annotations

import argparse
import json
import sys


def main() -> None:
    """Writes the line."""
    import vllm
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser: argparse.ArgumentParser = EngineArgs.add_cli_args(FlexibleArgumentParser(add_help=False))
    flags = (flag for action in parser._actions for flag in action.option_strings)
    names = sorted({flag[2:].replace("-", "_") for flag in flags if flag.startswith("--") and flag[:5] != "--no-"})
    found = {"version": vllm.__version__, "platform": current_platform.device_type, "arguments": names}
    sys.stdout.write("\n" + json.dumps(found) + "\n")
