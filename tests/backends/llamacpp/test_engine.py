"""The llama.cpp engine before anything is loaded: options, refusals, identity, control."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from refract.backends._source import ModelSource
from refract.backends.llamacpp.engine import LlamaCppEngine, asked_context
from refract.backends.llamacpp.server_log import AskedContext
from refract.engine import Capability, LoadSpec
from refract.errors import KVUnsupportedError, ModelError, UsageError
from refract.kv import parse_kv
from tests.backends.llamacpp.test_find import GOOD, install

F16 = parse_kv("ctk=f16,ctv=f16")


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LlamaCppEngine:
    monkeypatch.delenv("REFRACT_LLAMA_EXTRA_FLAGS", raising=False)
    return made(tmp_path)


def made(folder: Path, *, head_dim: int = 64, perplexity: bool = True, **options: str) -> LlamaCppEngine:
    binaries = install(folder / "bin", GOOD, perplexity=perplexity)
    file = folder / "model.gguf"
    file.write_bytes(b"weights")
    engine = LlamaCppEngine({"llama_bin": str(binaries), **options}, folder)
    engine._models._found["m"] = ModelSource(
        name="model.gguf",
        path=file,
        files=(file,),
        architecture="llama",
        layers=2,
        head_dim=head_dim,
        context_length=512,
        weights="GGUF F16",
    )
    return engine


def spec(kv: str = "ctk=f16,ctv=f16", **options: str) -> LoadSpec:
    return LoadSpec(model="m", kv=parse_kv(kv), max_tokens=128, options=options)


@pytest.mark.parametrize(
    ("options", "said", "hint"),
    [
        ({"ubach": "1"}, "no option 'ubach'", "did you mean ubatch?"),
        ({"parallel": "0"}, "parallel must be a number from 1 to", "leave it out"),
        ({"flash_attn": "maybe"}, "flash_attn is 'maybe'", "use on, off or auto"),
    ],
)
def test_options_it_does_not_have(options: dict[str, str], said: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        LlamaCppEngine(options)
    assert said in caught.value.message
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("kv", "said"),
    [
        ("ctk=affine4,ctv=f16", "affine4 does not exist on llamacpp"),
        ("ctk=turbo4,ctv=f16", "turbo4 is no KV type of this llama.cpp"),
        ("ctk=q8_0,ctv=q8_0,rot=wht", "rotates both sides in its own way or neither"),
        ("ctk=q8_0,ctv=q8_0,rot_k=none", "rotates both sides in its own way or neither"),
        ("ctk=q8_0,ctv=q8_0,boundary=1", "does not exist on llamacpp"),
    ],
)
def test_configurations_it_cannot_carry_out(engine: LlamaCppEngine, kv: str, said: str) -> None:
    with pytest.raises(KVUnsupportedError, match=said):
        engine.check_kv("m", parse_kv(kv))


@pytest.mark.parametrize("kv", ["ctk=f16,ctv=f16", "ctk=q8_0,ctv=turbo3", "ctk=q8_0,ctv=q8_0,rot=none"])
def test_configurations_it_can(engine: LlamaCppEngine, kv: str) -> None:
    engine.check_kv("m", parse_kv(kv))
    assert engine.capabilities(parse_kv(kv)) >= {Capability.KL_PREFILL, Capability.KL_DECODE, Capability.GENERATE}


def test_a_head_dimension_that_no_block_divides(tmp_path: Path) -> None:
    engine = made(tmp_path, head_dim=80)
    engine.check_kv("m", F16)
    with pytest.raises(KVUnsupportedError, match="K as q8_0 needs a head dimension that is a multiple of 32"):
        engine.check_kv("m", parse_kv("ctk=q8_0,ctv=f16"))


def test_a_compressed_v_needs_flash_attention(tmp_path: Path) -> None:
    engine = made(tmp_path, flash_attn="off")
    engine.check_kv("m", parse_kv("ctk=q8_0,ctv=f16"))
    with pytest.raises(KVUnsupportedError, match="needs flash attention"):
        engine.check_kv("m", parse_kv("ctk=f16,ctv=q8_0"))


def test_without_llama_perplexity_there_is_no_exact_divergence(tmp_path: Path) -> None:
    engine = made(tmp_path, perplexity=False)
    assert Capability.KL_PREFILL not in engine.capabilities(F16)
    assert [check.status for check in engine.check("m") if check.name == "perplexity tool"] == ["warn"]


def test_the_control_is_another_attention_kernel_or_another_ubatch(engine: LlamaCppEngine) -> None:
    assert engine.control_by_default
    assert engine.control_options({}, F16) == {"flash_attn": "off"}
    assert engine.control_options({"flash_attn": "off"}, F16) == {"flash_attn": "on"}
    assert engine.control_options({}, parse_kv("ctk=q8_0,ctv=q8_0")) == {"ubatch": "64"}
    assert engine.control_options({"ubatch": "64"}, parse_kv("ctk=q8_0,ctv=q8_0")) == {"ubatch": "512"}


def test_identity_is_of_what_is_computed_and_not_of_where_or_how_fast(engine: LlamaCppEngine, tmp_path: Path) -> None:
    own = engine.identify(spec())
    assert engine.identify(spec(threads="1", servers="3")) == own
    assert engine.identify(spec(ubatch="64")) != own
    assert engine.identify(spec(extra_flags="-ngl 3")) != own
    assert engine.identify(spec("ctk=q8_0,ctv=f16")) != own
    assert not any(str(tmp_path) in text for text in (*own.options.values(), own.build, own.model))


def test_extra_flags_may_come_from_the_environment(engine: LlamaCppEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFRACT_LLAMA_EXTRA_FLAGS", "-ngl 7 --override-kv 'a=str:b c'")
    assert engine.identify(spec()).options["extra_flags"] == "-ngl 7 --override-kv 'a=str:b c'"
    monkeypatch.setenv("REFRACT_LLAMA_EXTRA_FLAGS", "'open")
    with pytest.raises(UsageError, match="cannot be read"):
        engine.identify(spec())


def test_what_the_users_own_flags_set_is_not_held_against_the_request() -> None:
    options = {"flash_attn": "on", "ubatch": "512", "parallel": "1"}
    assert asked_context(options, []) == AskedContext(flash_attention=True, ubatch=512, sequences=1)
    assert asked_context(options, ["-fa", "off", "-b", "64", "-np", "2"]) == AskedContext(
        flash_attention=None, ubatch=None, sequences=None
    )
    assert asked_context({**options, "flash_attn": "auto"}, []).flash_attention is None


def test_a_folder_is_no_model_for_it(tmp_path: Path) -> None:
    engine = made(tmp_path)
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "config.json").write_text(
        '{"model_type": "llama", "num_hidden_layers": 1, "head_dim": 64, "max_position_embeddings": 9}'
    )
    (folder / "model.safetensors").write_bytes(b"x")
    with pytest.raises(ModelError, match="runs GGUF files"):
        engine.check_kv(str(folder), F16)


def test_the_environment_of_these_tests_is_clean() -> None:
    assert not [name for name in os.environ if name.startswith("LLAMA_ARG_")]


def test_a_patched_server_reads_positions_behind_a_long_cache(tmp_path: Path) -> None:
    assert Capability.KL_DEEP not in made(tmp_path).capabilities(F16)
    engine = made(tmp_path)
    engine.binaries = replace(engine.binaries, help=f"{engine.binaries.help}\n--prompt-probs  lists the prompt\n")
    assert Capability.KL_DEEP in engine.capabilities(F16)
    flags = engine._server_flags(engine._effective(spec()), 100)
    assert flags[-3:] == ["--prompt-probs", "-b", "512"]
