"""Which cmake options a machine's processors allow."""

from __future__ import annotations

import pytest

from refract.backends.llamacpp.instructions import avx512_options, this_machine

WIDE = "flags\t\t: fpu avx2 avx512f avx512dq avx512cd avx512bw avx512vl"


@pytest.mark.parametrize(
    ("cpuinfo", "options"),
    [
        ("", ()),
        ("flags\t\t: fpu avx avx2 fma", ()),
        ("flags\t\t: avx512f avx512cd", ()),  # an early one without the byte and word instructions
        (WIDE, ("-DGGML_AVX512=ON",)),
        (
            f"{WIDE} avx512_vnni avx512_bf16 amx_tile",
            ("-DGGML_AVX512=ON", "-DGGML_AVX512_VNNI=ON", "-DGGML_AVX512_BF16=ON"),
        ),
        (f"{WIDE} avx512vbmi\n{WIDE}", ("-DGGML_AVX512=ON",)),  # cores of two kinds: what both have
        ("Features\t: fp asimd", ()),  # Arm
    ],
)
def test_the_sets_that_every_core_has(cpuinfo: str, options: tuple[str, ...]) -> None:
    assert avx512_options(cpuinfo) == options


def test_amx_is_never_asked_for() -> None:
    assert not any("AMX" in option for option in this_machine())
