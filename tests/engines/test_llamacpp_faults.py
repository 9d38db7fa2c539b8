"""A llama-server that dies, and a run that is killed: nothing is lost and nothing is left running."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("llamacpp")

ARGUMENTS = [
    *("score", "--backend", "llamacpp", "--candidate", "ctk=q8_0,ctv=q8_0", "--axes", "trajectory"),
    *("--max-prompts", "6", "--n-predict", "24", "--no-control", "--progress", "plain"),
]
TRIALS = int(os.environ.get("REFRACT_TEST_KILLS", "2"))


def servers(model: Path) -> list[int]:
    """The llama-servers that run this model file."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if command[0].endswith(b"llama-server") and str(model).encode() in command:
            found.append(int(folder.name))
    return found


def wait_for(model: Path, *, some: bool) -> list[int]:
    end = time.monotonic() + 60.0
    while bool(found := servers(model)) is not some and time.monotonic() < end:
        time.sleep(0.02)
    return found


@pytest.fixture
def model(smollm2: Path, tmp_path: Path) -> Path:
    """A name of the model's own, so that only this test's servers are counted."""
    link = tmp_path / "model with spaces ü.gguf"
    link.symlink_to(smollm2)
    return link


def start(model: Path, cache: Path) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "refract", *ARGUMENTS, "--model", str(model), "--cache-dir", str(cache)]
    binaries = _binaries()
    return subprocess.Popen(
        [*words, "--llama-bin", str(binaries)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job inherits it ignored
    )


def _binaries() -> Path:
    from refract.backends.llamacpp.find import find_binaries
    from refract.run.cache import cache_folder

    return find_binaries(None, cache_folder()).server.parent


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
@pytest.mark.parametrize("trial", range(TRIALS))
def test_a_server_killed_in_the_middle_ends_in_5_and_the_same_command_finishes(
    model: Path, tmp_path: Path, trial: int
) -> None:
    cache = tmp_path / "cache"
    with start(model, cache) as run:
        assert wait_for(model, some=True)
        time.sleep(0.1 + 0.3 * (trial % 6))
        for pid in servers(model):
            os.kill(pid, signal.SIGKILL)
        _, err = run.communicate(timeout=120)
        assert run.returncode == 5, err
        assert "is gone while answering" in err or "was killed while it started" in err
        assert "Traceback" not in err
    assert wait_for(model, some=False) == []
    with start(model, cache) as again:
        out, err = again.communicate(timeout=300)
    assert again.returncode == 0, err
    assert re.search(r"6 prompts", out)
    assert wait_for(model, some=False) == []


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_killed_leaves_no_server(model: Path, tmp_path: Path, sign: signal.Signals) -> None:
    with start(model, tmp_path / "cache") as run:
        assert wait_for(model, some=True)
        time.sleep(0.3)
        run.send_signal(sign)
        run.communicate(timeout=60)
    assert run.returncode != 0
    assert wait_for(model, some=False) == []
