"""The vector instructions of this machine that llama.cpp may be built with.

A build for any processor stops at AVX2. AVX-512 makes F16 and quantised prefill about 1.4 times faster. AMX stays off:
gcc 12 makes binaries of it that crash.
"""

from __future__ import annotations

from pathlib import Path

_BASE = frozenset({"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"})  # what ggml's GGML_AVX512 compiles for
_MORE = {
    "avx512vbmi": "GGML_AVX512_VBMI",
    "avx512_vnni": "GGML_AVX512_VNNI",
    "avx512_bf16": "GGML_AVX512_BF16",
}
_CPUINFO = Path("/proc/cpuinfo")


def avx512_options(cpuinfo: str) -> tuple[str, ...]:
    """cmake options for the AVX-512 sets that every processor in the text of /proc/cpuinfo has; empty without any."""
    each = [set(line.partition(":")[2].split()) for line in cpuinfo.splitlines() if line.startswith("flags")]
    common = set.intersection(*each) if each else set()
    if not common >= _BASE:
        return ()
    return ("-DGGML_AVX512=ON", *(f"-D{option}=ON" for flag, option in _MORE.items() if flag in common))


def this_machine() -> tuple[str, ...]:
    """`avx512_options` of this machine; empty where the system does not tell."""
    return avx512_options(_CPUINFO.read_text()) if _CPUINFO.is_file() else ()
