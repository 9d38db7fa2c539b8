"""Finds llama.cpp's binaries and learns what they are: build, options, KV types, devices."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from refract.backends._process import child, described
from refract.errors import SetupError

VARIABLE = "REFRACT_LLAMA_BIN_DIR"
SERVER, PERPLEXITY = "llama-server", "llama-perplexity"
_BUILT = "engines/llama.cpp-*/bin"  # below the cache folder, where `refract engines build-llamacpp` puts them
_BUILD_HINT = "name their folder with --llama-bin, or build them: refract engines build-llamacpp"
_NONE_HINT = f"{_BUILD_HINT}; or: pip install xllamacpp"
_WHEEL_SERVER = "refract.backends.llamacpp.wheel_server"
_PROBE_S = 30.0
_NOT_RUN = 126
_NEEDED = ("--cache-type-k", "--flash-attn", "--parallel")
_TYPES = re.compile(r"--cache-type-k.*?allowed values:\s*([\w,\s]+?)\s*\(default", re.DOTALL)
_VERSION = re.compile(r"version: (.+)")
_SCRUBBED = ("LLAMA_ARG_", "LLAMA_ATTN_ROT_", "TURBO_")  # every one changes what is computed without a trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    """llama-server, llama-perplexity where there is one, and what the server says of itself.

    `command` starts the server. `build` is its version line; `types` are the KV types in its own help; `devices` are
    the GPUs it would use.
    """

    command: tuple[str, ...]
    perplexity: Path | None
    build: str
    help: str
    types: tuple[str, ...]
    devices: tuple[str, ...]

    @property
    def server(self) -> Path:
        """The program that is started."""
        return Path(self.command[0])

    def knows(self, option: str) -> bool:
        """Whether the server has this option."""
        return re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", self.help) is not None


def find_binaries(folder: str | None, cache_dir: Path | None) -> Binaries:
    """The binaries in `folder` (--llama-bin), else of the variable, of the PATH, or built into the cache folder.

    Without any of these the server of the `xllamacpp` wheel, if that is installed.

    Raises: SetupError when there are none, or the server cannot be used: each way of failing has its own line.
    """
    command = _command(folder, cache_dir)
    version = _asked(command, "--version")
    found = _VERSION.search(version)
    if found is None:
        raise SetupError(f"{SERVER} --version says nothing of a version: {_first(version)}", hint=_BUILD_HINT)
    text = _asked(command, "--help")
    types = _TYPES.search(text)
    lacking = [option for option in _NEEDED if option not in text]
    if lacking or types is None:
        raise SetupError(
            f"{SERVER} ({found[1]}) is too old: its help lacks {', '.join(lacking) or 'the KV types'}", hint=_BUILD_HINT
        )
    return Binaries(
        command=command,
        perplexity=_perplexity(command, found[1].strip()),
        build=found[1].strip(),
        help=text,
        types=tuple(name for name in re.split(r"[,\s]+", types[1]) if name),
        devices=_devices(command) if "--list-devices" in text else (),
    )


def clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for llama.cpp's programs: without the variables that set their options unseen.

    Idle OpenMP threads sleep: on a busy machine spinning ones made a run twenty times slower.
    """
    kept = {name: value for name, value in environ.items() if not name.startswith(_SCRUBBED)}
    return {"OMP_WAIT_POLICY": "passive"} | kept


def _perplexity(command: Sequence[str], build: str) -> Path | None:
    """The llama-perplexity beside the server, which must work and be of the same build.

    Raises: SetupError.
    """
    beside = Path(command[0]).with_name(PERPLEXITY)
    if len(command) > 1 or not beside.is_file():
        return None
    found = _VERSION.search(_asked([str(beside)], "--version"))
    own = found[1].strip() if found else "no version"
    if own != build:
        message = f"{PERPLEXITY} says {own}, the {SERVER} beside it {build}"
        raise SetupError(message, hint="keep programs of one build in a folder")
    return beside


def _command(folder: str | None, cache_dir: Path | None) -> tuple[str, ...]:
    """What starts llama-server."""
    server = _server(folder, cache_dir)
    if server is not None:
        return (str(server),)
    if importlib.util.find_spec("xllamacpp") is not None:
        return (sys.executable, "-m", _WHEEL_SERVER)
    raise SetupError(f"no {SERVER} on the PATH or in the cache folder", hint=_NONE_HINT)


def _server(folder: str | None, cache_dir: Path | None) -> Path | None:
    for named, by in ((folder, "--llama-bin"), (os.environ.get(VARIABLE), VARIABLE)):
        if named:
            path = Path(named).expanduser() / SERVER
            if not path.is_file():
                raise SetupError(f"{by} names a folder without {SERVER}", hint="name the folder that holds it")
            return path.resolve()
    if on_path := shutil.which(SERVER):
        return Path(on_path).resolve()
    built = sorted(cache_dir.glob(f"{_BUILT}/{SERVER}")) if cache_dir else []
    return built[-1].resolve() if built else None


def _asked(command: Sequence[str], option: str, *, silent: bool = False) -> str:
    """What the server prints for an option that makes it print and end; with `silent` that may be nothing.

    Raises: SetupError.
    """
    name = Path(command[0]).name if len(command) == 1 else SERVER
    with child([*command, option], env=clean_environment(os.environ)) as process:
        status = process.wait(_PROBE_S)
        text = process.log
    if status is None:
        raise SetupError(f"{name} {option} did not end within {_PROBE_S:g} s", hint=_BUILD_HINT)
    if status != 0 or not (silent or text.strip()):
        raise unusable(text, status, name=name)
    return text


def unusable(text: str, status: int, *, name: str = SERVER) -> SetupError:
    """Why the binary `name` that ended with this status and text cannot be used, and what to do about it."""
    if missing := re.search(
        r"([\w.+-]+\.(?:so|dylib)[\w.]*): cannot open shared object|Library not loaded: (\S+)", text
    ):
        library = missing[1] or Path(missing[2]).name
        hint = f"install what {library} belongs to, or put its folder on the loader's path; or: {_BUILD_HINT}"
        return SetupError(f"{name} needs the shared library {library}, which is missing", hint=hint)
    if status == 128 + 4:
        return SetupError(
            f"{name} uses instructions this processor lacks (SIGILL)",
            hint="build it with -DGGML_NATIVE=OFF, as refract engines build-llamacpp does, or try the flag --no-repack",
        )
    if status == _NOT_RUN:
        reason = text.rpartition(": ")[2].strip()
        what = "it is made for another kind of processor or is no program" if "format" in reason else reason
        return SetupError(f"{name} cannot be run: {what}", hint=_BUILD_HINT)
    said = f": {_first(text)}" if text.strip() else " without a word"
    return SetupError(f"{name} does not start ({described(status)}){said}", hint=_BUILD_HINT)


def _first(text: str) -> str:
    return next((line.strip()[:120] for line in text.splitlines() if line.strip()), "nothing")


def _devices(command: Sequence[str]) -> tuple[str, ...]:
    """The lines below "Available devices:", one a GPU; none on a build for processors only."""
    listing = _asked(command, "--list-devices", silent=True).partition("Available devices:")[2]
    return tuple(line.strip() for line in listing.splitlines() if ":" in line)
