"""Windows behind a long cache: memory does not grow with depth times vocabulary."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("mlx")

DEPTH = 7900  # and 256 scored positions fit the model's 8,192
MOST_BYTES = 1 << 30
WORDS = [
    *("-m", "refract", "score", "--candidate", "ctk=q8_0,ctv=turbo3", "--axes", "kld", "--chunks", "1", "--ctx", "64"),
    *("--no-explain", "--no-control", "--progress", "none"),
]


def peak_bytes(model: Path, cache: Path, *more: str) -> int:
    """The largest resident size of a run of `refract score`; every run starts with an empty store."""
    command = [sys.executable, *WORDS, "--model", str(model), "--cache-dir", str(cache), *more]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, said.decode()
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def test_a_window_at_7900_tokens_takes_less_than_a_gibibyte_above_the_model(smollm2: Path, tmp_path: Path) -> None:
    shallow = peak_bytes(smollm2, tmp_path / "shallow")
    deep = peak_bytes(smollm2, tmp_path / "deep", "--depth", str(DEPTH))
    print(f"peak {shallow / 2**20:.0f} MiB without, {deep / 2**20:.0f} MiB with windows at {DEPTH} tokens")
    assert deep - shallow < MOST_BYTES
