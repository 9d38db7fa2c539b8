"""Windows behind a long cache: memory does not grow with depth times vocabulary."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from refract.backends._hidden import write_base
from refract.engine import LoadSpec
from refract.kv import parse_kv
from refract.run.blobs import BlobFolder
from refract.work import CompareBase, Divergence, Window

pytestmark = pytest.mark.usefixtures("mlx")

# these and the scored positions fit the model's 8,192; a smaller number is for trying things
SHALLOW, DEEP = 256, int(os.environ.get("REFRACT_TEST_DEPTH", "7900"))
POSITIONS, WIDTH = 256, 576
MOST_BYTES = (1 << 30) * DEEP // 7900


def peak_bytes(model: Path, folder: Path, depth: int) -> int:
    """The largest resident size of a process that compares as many windows at `depth` as there are lanes."""
    command = [sys.executable, "-m", "tests.engines.test_mlx_depth", str(model), str(folder), str(depth)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_deep_windows_take_less_than_a_gibibyte_for_7900_tokens_above_the_model(smollm2: Path, tmp_path: Path) -> None:
    shallow = peak_bytes(smollm2, tmp_path / "shallow", SHALLOW)
    deep = peak_bytes(smollm2, tmp_path / "deep", DEEP)
    print(f"peak {shallow >> 20} MiB at {SHALLOW} tokens, {deep >> 20} MiB at {DEEP}")
    assert shallow > 256 << 20
    assert deep - shallow < MOST_BYTES


def compare_windows(model: str, folder: Path, depth: int) -> None:
    """Two windows under a candidate, one a lane on two cores, against made-up states: they take the same memory."""
    from refract.backends.mlx.blas import prepare_blas

    prepare_blas()
    from refract.backends.mlx.engine import MLXEngine
    from refract.backends.mlx.hidden import FORMAT

    engine, blobs = MLXEngine(cache_dir=folder), BlobFolder(folder / "blobs")
    states = np.random.default_rng(0).normal(size=(POSITIONS, WIDTH)).astype(np.float32)
    base = write_base(blobs, FORMAT, [states])
    texts = [tuple((7 * i + 13 * n) % 40000 + 100 for i in range(depth + POSITIONS)) for n in range(2)]
    requests = [
        CompareBase(windows=(Window(tokens=tokens, start=depth),), protocol="prefill", base=base) for tokens in texts
    ]
    spec = LoadSpec(model=model, kv=parse_kv("ctk=q8_0,ctv=turbo3"), max_tokens=depth + POSITIONS)
    with engine.load(spec, blobs) as session:
        answers = [answer for _, answer in session.run(requests)]
    if not all(isinstance(answer, Divergence) and answer.kl.size == POSITIONS for answer in answers):
        raise SystemExit(f"expected two divergences, got {answers}")


if __name__ == "__main__":
    compare_windows(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(most * (1 if sys.platform == "darwin" else 1024))
