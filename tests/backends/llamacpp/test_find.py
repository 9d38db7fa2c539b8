"""Finding llama.cpp, with stand-ins for every kind of binary that cannot be used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from refract.backends.llamacpp import find
from refract.backends.llamacpp.find import clean_environment, find_binaries
from refract.errors import SetupError

HELP = """usage: llama-server
-fa,   --flash-attn [on|off|auto]       set Flash Attention use
-np,   --parallel N                     number of server slots
-ctk,  --cache-type-k TYPE              KV cache data type for K
                                        allowed values: f32, f16, q8_0,
                                        turbo3 (default: f16)
--list-devices                          print devices
"""
GOOD = f"""#!/bin/sh
case "$1" in
  --version) echo "version: 1.0 (build 7, commit x)" >&2 ;;
  --list-devices) printf 'Available devices:\\n  CUDA0: Big GPU (80 GiB)\\n' ;;
  *) cat <<'END'
{HELP}END
esac
"""


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No llama.cpp on this machine."""
    monkeypatch.delenv(find.VARIABLE, raising=False)
    monkeypatch.setenv("PATH", os.pathsep.join(("/usr/bin", "/bin")))


def install(folder: Path, script: str, *, perplexity: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in (find.SERVER, *([find.PERPLEXITY] if perplexity else [])):
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    return folder


def test_what_a_working_binary_says_of_itself(tmp_path: Path) -> None:
    found = find_binaries(str(install(tmp_path, GOOD, perplexity=True)), None)
    assert found.build == "1.0 (build 7, commit x)"
    assert found.types == ("f32", "f16", "q8_0", "turbo3")
    assert found.devices == ("CUDA0: Big GPU (80 GiB)",)
    assert found.perplexity == tmp_path / find.PERPLEXITY
    assert found.knows("--parallel")
    assert not found.knows("--para")


def test_the_option_goes_before_the_variable_the_path_and_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = {name: install(tmp_path / name, GOOD) for name in ("option", "variable", "path")}
    cached = install(tmp_path / "cache" / "engines" / "llama.cpp-7" / "bin", GOOD)
    cache = tmp_path / "cache"
    assert find_binaries(None, cache).server.parent == cached
    monkeypatch.setenv("PATH", f"{places['path']}{os.pathsep}/usr/bin{os.pathsep}/bin")
    assert find_binaries(None, cache).server.parent == places["path"]
    monkeypatch.setenv(find.VARIABLE, str(places["variable"]))
    assert find_binaries(None, cache).server.parent == places["variable"]
    assert find_binaries(str(places["option"]), cache).server.parent == places["option"]
    assert find_binaries(str(places["option"]), cache).perplexity is None


@pytest.mark.parametrize(
    ("script", "said", "hint"),
    [
        (
            "#!/bin/sh\necho 'x: error while loading shared libraries: libggml.so.0: "
            "cannot open shared object file' >&2\nexit 127\n",
            "needs the shared library libggml.so.0, which is missing",
            "loader's path",
        ),
        ("#!/bin/sh\nkill -ILL $$\n", "instructions this processor lacks (SIGILL)", "GGML_NATIVE=OFF"),
        ("#!/bin/sh\nkill -KILL $$\n", "does not start (ended by SIGKILL) without a word", "--llama-bin"),
        ("#!/bin/sh\nexit 0\n", "does not start (exit status 0) without a word", "--llama-bin"),
        ("#!/bin/sh\necho usage: something\n", "says nothing of a version: usage: something", "--llama-bin"),
        (
            GOOD.replace("--flash-attn [on|off|auto]", "--other"),
            "is too old: its help lacks --flash-attn",
            "build-llamacpp",
        ),
        ("\x7fELF for another processor", "made for another kind of processor or is no program", "--llama-bin"),
    ],
)
def test_a_binary_that_cannot_be_used_says_why_in_one_line(tmp_path: Path, script: str, said: str, hint: str) -> None:
    with pytest.raises(SetupError) as caught:
        find_binaries(str(install(tmp_path, script)), None)
    assert said in caught.value.message
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            GOOD.replace("build 7", "build 8"),
            "llama-perplexity says 1.0 (build 8, commit x), the llama-server beside it",
        ),
        ("#!/bin/sh\nkill -ILL $$\n", "llama-perplexity uses instructions this processor lacks"),
        ("#!/bin/sh\necho usage\n", "llama-perplexity says no version"),
        (
            "#!/bin/sh\necho 'libx.so: cannot open shared object file'; exit 127\n",
            "llama-perplexity needs the shared library libx.so",
        ),
    ],
)
def test_a_perplexity_tool_that_does_not_work_or_is_of_another_build_is_not_used(
    tmp_path: Path, script: str, said: str
) -> None:
    folder = install(tmp_path, GOOD)
    (folder / find.PERPLEXITY).write_text(script)
    (folder / find.PERPLEXITY).chmod(0o755)
    with pytest.raises(SetupError) as caught:
        find_binaries(str(folder), None)
    assert said in caught.value.message


def test_one_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "_PROBE_S", 0.1)
    with pytest.raises(SetupError, match=r"--version did not end within 0\.1 s"):
        find_binaries(str(install(tmp_path, "#!/bin/sh\nexec sleep 60\n")), None)


def test_none_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(SetupError, match="no llama-server on the PATH or in the cache folder") as caught:
        find_binaries(None, tmp_path)
    assert "refract engines build-llamacpp" in (caught.value.hint or "")
    with pytest.raises(SetupError, match="--llama-bin names a folder without llama-server"):
        find_binaries(str(tmp_path), None)


def test_the_wheel_is_the_last_resort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find.importlib.util, "find_spec", lambda name: object() if name == "xllamacpp" else None)
    found = find_binaries(None, tmp_path)
    assert found.command[1:] == ("-m", "refract.backends.llamacpp.wheel_server")
    assert found.perplexity is None
    assert found.build.startswith("xllamacpp ")
    assert {"f16", "q8_0", "iq4_nl"} <= set(found.types)
    assert found.knows("--no-warmup")
    assert find_binaries(str(install(tmp_path, GOOD)), tmp_path).build == "1.0 (build 7, commit x)"


def test_variables_that_would_set_options_unseen_are_left_out() -> None:
    given = {"PATH": "/bin", "LLAMA_ARG_CTX_SIZE": "1", "LLAMA_ATTN_ROT_DISABLE": "1", "TURBO_LAYER_ADAPTIVE": "1"}
    assert clean_environment(given) == {"PATH": "/bin", "OMP_WAIT_POLICY": "passive"}
    assert clean_environment({"OMP_WAIT_POLICY": "active"}) == {"OMP_WAIT_POLICY": "active"}
