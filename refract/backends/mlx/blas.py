"""Gives MLX a fast BLAS on Linux, before mlx is imported.

The Linux wheel of MLX links a reference BLAS (4.5 GFLOPS measured, against 147 for MKL). A library that exports plain
`cblas_sgemm`, loaded into the global symbol scope first, is used instead. Results are bit-identical between threads,
processes and batch shapes with MKL's sequential and TBB layers; its Intel-OpenMP layer is not (7e-5 on logits).
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Blas:
    """The BLAS that MLX will use; `fast` is false for the wheel's own reference BLAS."""

    name: str
    fast: bool

    @property
    def advice(self) -> str | None:
        """One line on how to get a fast BLAS, or None when there is one."""
        if self.fast:
            return None
        return "MLX runs on its slow reference BLAS here (about 30 times slower); pip install mkl makes it fast"


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


def _load_mkl(library: Path) -> str | None:
    """The name of MKL's threading layer in use, or None when the library does not load."""
    tbb = next(iter(sorted(library.parent.glob("libtbb.so.*"))), None)
    threaded = tbb is not None and (os.cpu_count() or 1) > 1 and _load(tbb)
    layer = os.environ.setdefault("MKL_THREADING_LAYER", "TBB" if threaded else "SEQUENTIAL")
    return layer.lower() if _load(library) else None


def prepare_blas() -> Blas:
    """The BLAS that MLX will use from now on; on Linux the fastest one found is loaded first.

    Has no effect when mlx is imported already, and is not needed on macOS, where MLX uses Metal or Accelerate.
    """
    if sys.platform != "linux":
        return Blas(name="system", fast=True)
    for library in _mkl_libraries():
        if layer := _load_mkl(library):
            version = importlib.metadata.version("mkl")
            return Blas(name=f"mkl {version} ({layer})", fast=True)
    for name in ("libopenblas.so.0", "libblis.so.4"):
        if _load(name):
            return Blas(name=name, fast=True)
    return Blas(name="reference", fast=False)
