"""What llama.cpp's log says of its KV cache, from recorded logs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from refract.backends.llamacpp.server_log import AskedContext, check_context, effective_kv, read_cache_log
from refract.errors import ConfigMismatchError, EngineError
from refract.kv import parse_kv

RECORDED = Path(__file__).parent / "recorded"


def log(name: str) -> str:
    return (RECORDED / f"cache_{name}.log").read_text(encoding="utf-8")


def test_one_cache_is_read_with_exact_bytes() -> None:
    found = effective_kv(parse_kv("ctk=q8_0,ctv=q8_0"), read_cache_log(log("b11434_smollm2-f16_q8_0_lv4")))
    assert (found.k, found.v, found.layers, found.layers_compressed) == ("q8_0", "q8_0", 30, 30)
    assert found.bytes_per_token == 2 * 30 * 192 * 8.5 / 8
    assert found.notes == ("stored rotated: K and V", "flash attention on")


def test_both_caches_of_a_model_with_sliding_windows_are_summed() -> None:
    found = effective_kv(parse_kv("ctk=q8_0,ctv=q4_0"), read_cache_log(log("b11434_gemma3-270m_q8_0_q4_0_lv4")))
    assert (found.layers, found.layers_compressed) == (18, 18)
    assert found.bytes_per_token == 18 * 256 * (8.5 + 4.5) / 8
    assert "2 caches: 3 layers of 2,048 cells, 15 layers of 1,024 cells" in found.notes


def test_padded_values_are_counted_and_a_trial_context_is_not() -> None:
    recorded = log("turboquant-69d8e4be4_smollm2-f16_q8_0_turbo3")
    found = effective_kv(parse_kv("ctk=q8_0,ctv=turbo3"), read_cache_log(recorded))
    assert found.v == "turbo3"
    assert found.bytes_per_token == 30 * (192 * 8.5 + 384 * 3.125) / 8
    assert found.layers == 30
    assert "stored without rotation" in found.notes
    assert "turbo zero-padding V head_dim 64 -> 128 (cache 192 -> 384)" in found.notes


def test_other_types_than_asked_for_are_an_error_that_names_both() -> None:
    with pytest.raises(ConfigMismatchError, match=r"asked for ctk=q8_0,ctv=q4_0.* allocated ctk=q8_0,ctv=q8_0"):
        effective_kv(parse_kv("ctk=q8_0,ctv=q4_0"), read_cache_log(log("b11434_smollm2-f16_q8_0_lv4")))


def test_one_of_two_caches_is_enough_for_an_error() -> None:
    mixed = log("b11434_gemma3-270m_q8_0_q4_0_lv4").replace("V (q4_0):    2.11", "V (f16):    2.11")
    with pytest.raises(ConfigMismatchError, match="ctv=f16 for 15 layers"):
        effective_kv(parse_kv("ctk=q8_0,ctv=q4_0"), read_cache_log(mixed))


def test_rotation_against_the_request_is_an_error() -> None:
    found = read_cache_log(log("b11434_smollm2-f16_q8_0_lv4"))
    with pytest.raises(ConfigMismatchError, match="rot=none"):
        effective_kv(parse_kv("ctk=q8_0,ctv=q8_0,rot=none"), found)


def test_a_log_without_a_cache_is_an_error() -> None:
    with pytest.raises(EngineError, match="does not say what KV cache"):
        read_cache_log("llama_context: flash_attn = enabled\n")


def test_a_remark_on_substituted_types_reaches_the_notes() -> None:
    remark = "llama_kv_cache: adaptive mode 1: first 4 layers stored as q8_0\n"
    found = read_cache_log(log("b11434_smollm2-f16_q8_0_lv4") + remark)
    assert found.remarks == ("llama_kv_cache: adaptive mode 1: first 4 layers stored as q8_0",)


CONTEXT = """llama_context: n_seq_max             = 2
llama_context: n_ctx                 = 1024
llama_context: n_ctx_seq             = 512
llama_context: n_batch               = 256
llama_context: n_ubatch              = 256
llama_context: flash_attn            = enabled
llama_kv_cache: size =   11.95 MiB (  1024 cells,  30 layers,  1/1 seqs), K (q8_0):    5.98 MiB, V (q8_0):    5.98 MiB
"""
ASKED = AskedContext(flash_attention=True, ubatch=512, sequences=2)


def test_a_context_as_asked_for_passes_and_a_ubatch_is_at_most_its_batch() -> None:
    found = read_cache_log(CONTEXT)
    check_context(found, ASKED, tokens=512)
    check_context(found, AskedContext(flash_attention=None, ubatch=None, sequences=None), tokens=0)
    assert found.numbers == {"n_ctx_seq": 512, "n_batch": 256, "n_ubatch": 256, "n_seq_max": 2}


@pytest.mark.parametrize(
    ("asked", "tokens", "said"),
    [
        (replace(ASKED, flash_attention=False), 1, "asked for flash attention off, llama.cpp has on"),
        (replace(ASKED, ubatch=64), 1, "asked for a ubatch of 64, llama.cpp has 256"),
        (replace(ASKED, sequences=1), 1, "asked for sequences at once: 1, llama.cpp has 2"),
        (replace(ASKED, sequences=3), 1, "asked for sequences at once: 3, llama.cpp has 2"),
        (ASKED, 513, "sequences of 513 tokens were asked for, llama.cpp holds 512"),
    ],
)
def test_a_context_that_differs_is_an_error(asked: AskedContext, tokens: int, said: str) -> None:
    with pytest.raises(ConfigMismatchError, match=said):
        check_context(read_cache_log(CONTEXT), asked, tokens=tokens)


def test_what_the_log_does_not_say_is_not_taken_for_granted() -> None:
    silent = CONTEXT.replace("llama_context: flash_attn            = enabled\n", "")
    with pytest.raises(ConfigMismatchError, match=r"flash attention on, llama\.cpp does not say"):
        check_context(read_cache_log(silent), ASKED, tokens=1)
