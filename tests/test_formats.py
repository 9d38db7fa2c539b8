"""The catalogue: its figures, that all of it parses, who implements what, and `refract formats`."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from refract.cli import formats as command
from refract.cli.formats_page import NOTES, page
from refract.format_spec import FormatSpec, ModifierSpec
from refract.formats import ALIASES, BACKENDS, BUILT, FORMATS, KEYS, MODIFIERS, unsupported
from refract.kv import parse_kv

# (format, head_dim) -> stored bits per value
BITS = {
    ("f32", 128): 32,
    ("f16", 128): 16,
    ("bf16", 64): 16,
    ("q8_0", 128): 8.5,
    ("q5_1", 128): 6.0,
    ("q5_0", 128): 5.5,
    ("q4_1", 128): 5.0,
    ("q4_0", 64): 4.5,
    ("iq4_nl", 128): 4.5,
    ("fp8_e4m3", 128): 8,
    ("fp8_e5m2:scale=head", 128): 8.125,
    ("affine8", 128): 8.5,
    ("affine4:g=32", 128): 5.0,
    ("affine2:g=128", 128): 2.25,
    ("turbo2", 128): 2.125,
    ("turbo3", 128): 3.125,
    ("turbo4", 128): 4.125,
    ("turbo8", 128): 8.125,
    ("turbo3", 64): 3.25,
    ("turbo4:prod=1", 128): 4.25,
    ("turbo4:scale=eden:codebook=sphere", 128): 4.125,
    ("polar", 128): 3.875,
    ("polar:bits=4-3-3-3", 128): 4.3125,
    ("polar:bits=5-3-3-3", 128): 4.8125,
    ("polar:bits=3-2-2-2", 128): 3.375,
    ("polar:bits=4-4-4-4", 128): 4.75,
    ("hybridpc", 128): (5 * (32 + 14 + 16) + 48 * 4 + 16) / 128,
    ("hybridpc:ratio=0.99", 64): 4 * (32 + 14 + 16) / 64,
    ("rfsn3", 128): 3.2 + 1,
    ("rfsn5", 128): 32 / 6 + 1,
    ("rfsn6:g=64", 128): 6.4 + 0.5,
    ("rfsn7", 128): 8 + 1,
    ("rfsn8:g=64", 128): 8.5,
    ("minmax2", 128): 3.0,
    ("minmax4:g=head", 128): 4.25,
    ("minmax3:g=head", 128): 3.25,
    ("nuq3", 128): 3.25,
    ("nuq3:outliers=0.01", 128): 3 + 56 / 128,
    ("nuq3:axis=token:outliers=0.01", 64): 3 + 56 / 64,
    ("nuq3:axis=token:outliers=0.02", 512): 3 + (32 + 10 * 32) / 512,
}
MLX_NOW = set(FORMATS)


@pytest.mark.parametrize(("text", "head_dim"), BITS)
def test_bits_per_value(text: str, head_dim: int) -> None:
    stored = parse_kv(f"ctk={text},ctv=f16").k
    assert stored.bits_per_value(head_dim) == pytest.approx(BITS[text, head_dim])
    assert stored.spec.bits_per_value(stored.options, head_dim) == stored.bits_per_value(head_dim)


def test_the_published_vllm_ratio_is_met() -> None:
    config = parse_kv("vllm:k8v4")
    stored = [side.bits_per_value(128) or 0.0 for side in (config.k, config.v)]
    assert 32 / sum(stored) == pytest.approx(2.6, abs=0.05)


def test_names_families_and_sizes() -> None:
    assert [name for name, spec in FORMATS.items() if spec.dense] == ["f16", "f32", "bf16"]
    assert {spec.size for spec in FORMATS.values() if spec.family == "turbo"} == set(range(1, 9))
    assert {spec.size for spec in FORMATS.values() if spec.family == "affine"} == {2, 3, 4, 5, 6, 8}
    assert {name for name, spec in FORMATS.items() if spec.rotated} == {
        *("polar", "hybridpc"),
        *(f"turbo{n}" for n in range(1, 9)),
    }
    assert all(name == spec.name for name, spec in FORMATS.items())


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_and_option_parses_on_its_sides(name: str) -> None:
    spec = FORMATS[name]
    assert spec.description
    assert "\n" not in spec.description
    assert str(parse_kv(f"ctk={name},ctv={name}")) == f"ctk={name},ctv={name}"
    for option in spec.options:
        assert option.domain.canonical(option.default) == option.default
        for value in option.domain.words:
            options = {option.name: value}
            if not spec.complaint(spec.size, {**{o.name: o.default for o in spec.options}, **options}):
                written = f"{name}:{option.name}={value}"
                assert str(parse_kv(f"ctk={written},ctv=f16").k) == (name if value == option.default else written)


@pytest.mark.parametrize("key", KEYS)
def test_every_modifier_value_parses(key: str) -> None:
    spec = KEYS[key]
    for form in spec.forms:
        for value in form.head.words:
            config = parse_kv(f"ctk=turbo4,ctv=turbo4,{key}={value}")
            assert config.options == (() if value == spec.default else ((key, value),))
        for option in form.options:
            assert option.domain.canonical(option.default) == option.default


def test_no_name_means_two_things() -> None:
    names = [*FORMATS, *KEYS, *ALIASES, "ctk", "ctv"]
    assert len(names) == len(set(names))


def test_status_names_exist_and_a_backend_is_either_built_or_planned() -> None:
    assert {name for names in BUILT.values() for name in names} <= set(FORMATS)
    assert set(BUILT) <= set(BACKENDS)
    specs: list[FormatSpec | ModifierSpec] = [*FORMATS.values(), *MODIFIERS.values()]
    for spec in specs:
        assert not set(spec.backends) & set(spec.planned)
        assert "mlx" in {*spec.backends, *spec.planned}


def test_what_mlx_has_now() -> None:
    assert {name for name, spec in FORMATS.items() if "mlx" in spec.backends} == MLX_NOW
    by_side = {f"{key}{side}" for key in ("rot", "boundary") for side in ("", "_k", "_v")}
    assert {key for key, spec in KEYS.items() if "mlx" in spec.backends} >= {"seed", "layers", "qjl", *by_side}


@pytest.mark.parametrize("name", sorted(MLX_NOW))
def test_what_mlx_has_is_supported(name: str) -> None:
    assert unsupported(parse_kv(f"ctk={name},ctv={name}"), "mlx") == []


def test_the_catalogue_agrees_with_the_mlx_codecs() -> None:
    codecs = pytest.importorskip("refract.backends.mlx.codecs", exc_type=ImportError)
    assert set(codecs.CODECS) == set(BUILT["mlx"])
    for name in BUILT["mlx"]:
        stored = parse_kv(f"ctk={name},ctv=f16").k
        assert codecs.make_codec(stored, 128).bits_per_value == stored.bits_per_value(128)


def test_boundary_is_supported_on_mlx() -> None:
    assert unsupported(parse_kv("ctk=q8_0,ctv=turbo3,boundary_k=1,boundary_v=2"), "mlx") == []


@pytest.mark.parametrize(
    ("text", "backend", "reasons"),
    [
        (
            "ctk=nuq3:outliers=0.01,ctv=q5_0,kmean=1,boundary=2",
            "mlx",
            [],
        ),
        (
            "ctk=turbo4:scale=eden:prod=1,ctv=turbo4",
            "mlx",
            [],
        ),
        (
            "ctk=minmax2:axis=channel:g=64,ctv=minmax2:g=64",
            "mlx",
            [],
        ),
        ("ctk=q8_0,ctv=q5_1:rot=haar,seed=3,boundary_v=2:type=q8_0", "mlx", []),
        ("ctk=q8_0,ctv=turbo3,rot=none", "llamacpp", []),
        (
            "ctk=affine4,ctv=f16,boundary=2",
            "llamacpp",
            ["affine4 does not exist on llamacpp", "boundary_k=2 does not exist on llamacpp"],
        ),
        (
            "ctk=fp8_e4m3,ctv=fp8_e4m3",
            "vllm",
            [],
        ),
        ("ctk=affine4:g=32,ctv=affine8:g=128", "mlx", []),
        ("ctk=polar,ctv=polar", "vllm", ["polar does not exist on vllm"]),
        (
            "ctk=f16,ctv=f16,decay=age=9",
            "mlx",
            ["decay=age=9 is planned for mlx and not implemented yet"],
        ),
    ],
)
def test_unsupported_says_why(text: str, backend: str, reasons: list[str]) -> None:
    assert unsupported(parse_kv(text), backend) == reasons


def _arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    return parser.parse_args(["formats", *words])


def test_the_tables_fit_80_columns_and_name_everything(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert command.run(_arguments()) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert max(map(len, out.splitlines())) <= 80
    assert "\x1b" not in out
    assert out.isascii()
    first_words = {line.split()[0] for line in out.splitlines() if line.strip()}
    assert {*FORMATS, *MODIFIERS, *(alias for alias in ALIASES if not alias.startswith("turbo"))} <= first_words


def test_one_backend_lists_what_it_has_or_is_to_have(capsys: pytest.CaptureFixture[str]) -> None:
    command.run(_arguments("--backend", "sglang"))
    out = capsys.readouterr().out
    assert "fp8_e4m3" in out
    assert "turbo3" not in out
    assert "Modifiers" not in out


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    command.run(_arguments("--json"))
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "refract.formats/1"
    assert [entry["name"] for entry in document["formats"]] == list(FORMATS)
    assert [entry["keys"][0] for entry in document["modifiers"]] == list(MODIFIERS)
    turbo4 = next(entry for entry in document["formats"] if entry["name"] == "turbo4")
    assert turbo4["bits_per_value"] == 4.125
    assert turbo4["backends"] == {"mlx": "yes", "llamacpp": "yes", "vllm": "yes", "sglang": "-"}


@pytest.mark.parametrize(
    ("module", "absent"), [("refract.kv", "rich numpy difflib"), ("refract.cli.formats", "rich mlx")]
)
def test_loading_is_cheap(module: str, absent: str) -> None:
    code = f"import sys, {module}; print(*set({absent.split()}) & set(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []


def test_the_page_is_current_and_says_something_of_every_family() -> None:
    made = Path(__file__).parents[1] / "docs" / "kv-formats.md"
    again = "python -c 'from refract.cli.formats_page import page; print(page(), end=str())' > docs/kv-formats.md"
    assert made.read_text(encoding="utf-8") == page(), f"run: {again}"
    assert set(NOTES) == {spec.family for spec in FORMATS.values()}
