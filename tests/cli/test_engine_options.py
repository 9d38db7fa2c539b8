"""Options of engines, from the command line and from the environment."""

from __future__ import annotations

import argparse

import pytest

from refract.cli import build_parser
from refract.cli.engine_options import engine_options
from refract.cli.parser import parse

ENVIRONMENT = {"REFRACT_LLAMA_BIN_DIR": "/opt/llama", "REFRACT_LLAMA_EXTRA_FLAGS": "-ngl 9"}


def parsed(*words: str) -> argparse.Namespace:
    return parse(build_parser(), ["score", *words, "--candidate", "ctk=q8_0,ctv=q8_0"], ENVIRONMENT)


@pytest.fixture(autouse=True)
def _set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


def test_variables_of_llamacpp_reach_it() -> None:
    found = engine_options(parsed("--backend", "llamacpp", "--parallel", "2"))
    assert found == {"llama_bin": "/opt/llama", "extra_flags": "-ngl 9", "parallel": "2"}


@pytest.mark.parametrize("backend", [(), ("--backend", "mlx"), ("--backend", "openai"), ("--backend", "vllm")])
def test_they_say_nothing_to_another_engine(backend: tuple[str, ...]) -> None:
    assert engine_options(parsed(*backend)) == {}


def test_what_is_written_for_the_wrong_engine_is_handed_on_to_be_refused() -> None:
    assert engine_options(parsed("--backend", "mlx", "--llama-bin", "/opt/other")) == {"llama_bin": "/opt/other"}
