"""Gives MLX a fast BLAS on Linux, before mlx is imported.

The Linux wheel of MLX links a reference BLAS (4.5 GFLOPS measured, against 147 for MKL). A library that exports plain
`cblas_sgemm`, loaded into the global symbol scope first, is used instead.

The BLAS runs on one thread, and the backend's lanes use the cores: everything in a model but its matrix products runs
on one core anyway, so two lanes of one thread each beat one lane of two (382 against 231 tokens per second of prefill),
and no result depends on how a product was split.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_ENVIRONMENT = {
    "MKL_THREADING_LAYER": "SEQUENTIAL",
    "OPENBLAS_NUM_THREADS": "1",
    "BLIS_NUM_THREADS": "1",
    # MLX walks a wide graph depth first, one lane after the other; breadth first keeps all lanes fed
    "MLX_BFS_MAX_WIDTH": "1000",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Blas:
    """The BLAS that MLX will use; `fast` is false for the wheel's own reference BLAS."""

    name: str
    fast: bool

    @property
    def warning(self) -> str | None:
        """What a slow BLAS costs, or None for a fast one."""
        if self.fast:
            return None
        return "MLX runs on its slow reference BLAS here, about 30 times slower than on a fast one"


def _mkl_libraries() -> Iterator[Path]:
    try:
        files = importlib.metadata.files("mkl") or []
    except importlib.metadata.PackageNotFoundError:
        return
    for file in files:
        if file.name.startswith("libmkl_rt.so"):
            yield Path(str(file.locate())).resolve()


def _load(path: str | Path) -> bool:
    try:
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True


def prepare_blas() -> Blas:
    """The BLAS that MLX will use from now on; on Linux the fastest one found is loaded first.

    Has no effect when mlx is imported already, and is not needed on macOS, where MLX uses Metal or Accelerate.
    """
    if sys.platform != "linux":
        return Blas(name="system", fast=True)
    os.environ.update(_ENVIRONMENT)
    for library in _mkl_libraries():
        if _load(library):
            return Blas(name=f"mkl {importlib.metadata.version('mkl')}", fast=True)
    for name in ("libopenblas.so.0", "libblis.so.4"):
        if _load(name):
            return Blas(name=name, fast=True)
    return Blas(name="reference", fast=False)
