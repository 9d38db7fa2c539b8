"""What a report says of the machine and the software, without its name."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from refract.results import Json

PACKAGES = (
    "numpy",
    "mlx",
    "mlx-lm",
    "mlx-metal",
    "mlx-cpu",
    "mkl",
    "gguf",
    "transformers",
    "tokenizers",
    "vllm",
    "sglang",
)


def machine() -> dict[str, Json]:
    """Operating system, processor, cores, memory in GiB and Python version; null where the system does not say."""
    return {
        "os": f"{platform.system()} {platform.release()}",
        "cpu": _cpu(),
        "cores": _usable_cores(),
        "memory_gib": _memory_gib(),
        "python": platform.python_version(),
    }


def packages() -> dict[str, str]:
    """Versions of the packages that decide what an engine computes, as far as they are installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "Hardware", "Processor"):
                return value.strip()
    if platform.system() == "Darwin":
        command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        try:
            return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            pass
    return platform.processor() or platform.machine()


def _usable_cores() -> int | None:
    affinity: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count()


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, ValueError, OSError):
        return None
