"""The arguments of an installed SGLang, and what may be said to it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from refract.backends.sglang.arguments import Installation, find_installation
from refract.backends.sglang.launch import defaults
from refract.errors import MissingPackageError, SetupError, UsageError


def argument(flag: str, kind: str = "one", number: str = "", choices: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"flag": flag, "kind": kind, "number": number, "choices": list(choices), "same": flag[2:].replace("-", "_")}


KNOWN = {
    "tp_size": argument("--tp-size", number="int") | {"same": "tp_size"},
    "tensor_parallel_size": argument("--tensor-parallel-size", number="int") | {"same": "tp_size"},
    "dtype": argument("--dtype", choices=("auto", "float32")),
    "trust_remote_code": argument("--trust-remote-code", kind="flag"),
    "page_size": argument("--page-size", number="int"),
    "mem_fraction_static": argument("--mem-fraction-static", number="float"),
    "lora_paths": argument("--lora-paths", kind="many"),
    "piecewise": argument("--piecewise", kind="on-off"),
    "json_model_override_args": argument("--json-model-override-args"),
}
OWN = Installation(python="python", version="0.5.15", device="cpu", arguments=KNOWN)


def test_arguments_reach_the_command_line_unchanged() -> None:
    asked = {
        "tp_size": "2",
        "json_model_override_args": '{"a": 1}',
        "trust_remote_code": "true",
        "lora_paths": "a 'b c'",
    }
    expected = ["--tp-size=2", '--json-model-override-args={"a": 1}', "--trust-remote-code", "--lora-paths", "a", "b c"]
    assert OWN.flags(asked) == expected
    assert OWN.flags({"trust_remote_code": "false", "piecewise": "false"}) == ["--no-piecewise"]
    assert OWN.names({"tensor_parallel_size": "2"}) == {"tp_size"}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("tp_sise", "2", "no argument 'tp_sise'"),
        ("tp_size", "two", "whole number"),
        ("mem_fraction_static", "x", "a number"),
        ("dtype", "float8", "does not know"),
        ("trust_remote_code", "perhaps", "on or off"),
        ("kv_cache_dtype", "fp8_e4m3", "not for --engine-arg"),
        ("model_path", "x", "not for --engine-arg"),
        ("port", "30000", "not for --engine-arg"),
    ],
)
def test_what_sglang_would_not_take_is_refused(name: str, value: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        OWN.flags({name: value})


def test_a_mistyped_argument_is_recognised() -> None:
    with pytest.raises(UsageError) as caught:
        OWN.flags({"tp_sise": "2"})
    assert caught.value.hint == "did you mean tp_size?"


def test_defaults_are_those_that_the_version_has() -> None:
    assert defaults(OWN, "cpu", max_tokens=512, lanes=1) == {"page_size": "1", "dtype": "float32"}
    assert defaults(OWN, "cuda", max_tokens=512, lanes=1) == {"page_size": "1"}


def interpreter(folder: Path, body: str) -> str:
    """A program that stands in for the interpreter of SGLang's environment, and counts how often it is asked."""
    file = folder / "python"
    count = f"open({str(folder / 'calls')!r}, 'a').write(sys.argv[1][-9:] + '\\n')\n"
    file.write_text(f"#!{sys.executable}\nimport json, sys\n{count}{body}")
    file.chmod(0o755)
    return str(file)


def test_an_installation_is_asked_once_and_remembered(tmp_path: Path) -> None:
    found = {"version": "0.5.15", "device": "cpu", "arguments": KNOWN}
    body = f"print('0.5.15 2.9' if sys.argv[1] == '-c' else 'noise\\n' + {json.dumps(found)!r})"
    python = interpreter(tmp_path, body)
    first = find_installation(python, tmp_path / "cache")
    assert first == Installation(python=python, version="0.5.15", device="cpu", arguments=KNOWN)
    assert find_installation(python, tmp_path / "cache") == first
    calls = (tmp_path / "calls").read_text().split()
    assert calls == ["-c", "inside.py", "-c"]


def test_an_environment_without_sglang_says_so(tmp_path: Path) -> None:
    body = "sys.exit('PackageNotFoundError: No package metadata was found for sglang')"
    with pytest.raises(MissingPackageError, match="no SGLang") as caught:
        find_installation(interpreter(tmp_path, body), None)
    assert "python=" in str(caught.value.hint)


def test_an_interpreter_that_is_none_says_so(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="cannot be run"):
        find_installation(str(tmp_path / "nowhere" / "python"), None)


def test_an_installation_that_says_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="does not say"):
        find_installation(interpreter(tmp_path, "print('hello')"), None)


def test_what_is_run_inside_lists_every_argument_by_all_its_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "sglang" / "srt"
    package.mkdir(parents=True)
    (tmp_path / "sglang" / "__init__.py").write_text("__version__ = '0.5.15'\nprint('a notice')\n")
    (package / "server_args.py").write_text(
        "import argparse\n"
        "class ServerArgs:\n"
        "    @staticmethod\n"
        "    def add_cli_args(parser):\n"
        "        parser.add_argument('--tensor-parallel-size', '--tp-size', dest='tp_size', type=int)\n"
        "        parser.add_argument('--dtype', choices=['auto', 'float32'])\n"
        "        parser.add_argument('--trust-remote-code', action='store_true')\n"
        "        parser.add_argument('--lora-paths', nargs='*')\n"
        "        parser.add_argument('--piecewise', action=argparse.BooleanOptionalAction)\n"
    )
    (tmp_path / "torch.py").write_text("class backends:\n    mps = None\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    versions = "import sys; print('0.5.15 2.9')"
    monkeypatch.setattr("refract.backends.sglang.arguments._VERSIONS", versions)  # these packages were never installed
    found = find_installation(sys.executable, None)
    assert (found.version, found.device) == ("0.5.15", "cpu")
    assert found.arguments["tp_size"] == argument("--tp-size", number="int")
    assert found.arguments["tensor_parallel_size"]["same"] == "tp_size"
    kinds = {name: found.arguments[name]["kind"] for name in ("dtype", "trust_remote_code", "lora_paths", "piecewise")}
    assert kinds == {"dtype": "one", "trust_remote_code": "flag", "lora_paths": "many", "piecewise": "on-off"}
    assert found.arguments["dtype"]["choices"] == ["auto", "float32"]
