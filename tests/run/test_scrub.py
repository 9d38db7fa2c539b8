from __future__ import annotations

import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refract.run.scrub import Who, model_name, scrub, scrub_json

WHO = Who(homes=("/srv/people/jdoe", "/home/jdoe"), user="jdoe", host="workbench7.lab.example")


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("refract score --model /home/jdoe/models/a.gguf", "refract score --model ~/models/a.gguf"),
        ("/srv/people/jdoe/a", "~/a"),
        ("/srv/people/jdoe", "~"),
        ("/srv/people/jdoe2/a", "/srv/people/jdoe2/a"),
        ("--cache-dir=/home/jdoe/.cache", "--cache-dir=~/.cache"),
        ("'/home/jdoe/with space/a'", "'~/with space/a'"),
        ("/home/somebody/models", "~/models"),
        ("/Users/somebody/models", "~/models"),
        (r"C:\Users\somebody\models", r"~\models"),
        ("/opt/home/models", "/opt/home/models"),
        ("/tmp/jdoe/x", "/tmp/<user>/x"),
        ("/media/jdoe-backup/x", "/media/jdoe-backup/x"),
        ("http://workbench7.lab.example:8080/v1", "http://<host>:8080/v1"),
        ("on workbench7 it failed", "on <host> it failed"),
        ("http://jdoe:hunter2@example.com/v1", "http://example.com/v1"),
        ("http://token@example.com/v1", "http://example.com/v1"),
        ("https://example.com/m.gguf?sig=abc&x=1#part", "https://example.com/m.gguf"),
        ("--api-key abc123 --ctx 512", "--api-key <removed> --ctx 512"),
        ("--api-key=abc123", "--api-key=<removed>"),
        ("REFRACT_API_KEY='a b' refract", "REFRACT_API_KEY=<removed> refract"),
        ("HF_TOKEN=hf_abcdefghijkl", "HF_TOKEN=<removed>"),
        ("the header was Authorization: Bearer abc.def-ghi", "the header was Authorization: Bearer <removed>"),
        ("key hf_AbCdEfGhIjKlMn and sk-abcdefgh12345", "key <removed> and <removed>"),
        ("ctk=q8_0,ctv=turbo3:seed=1", "ctk=q8_0,ctv=turbo3:seed=1"),
        ("--max-tokens 512 max_tokens=512 --n-predict 8", "--max-tokens 512 max_tokens=512 --n-predict 8"),
        ('{"api_key": "abc", "n": 1}', '{"api_key": <removed>, "n": 1}'),
        ("--token --verbose", "--token --verbose"),
        ("1000 tokens per window", "1000 tokens per window"),
        ("30 requests failed: bad-token: a token id", "30 requests failed: bad-token: a token id"),
        ("", ""),
    ],
)
def test_what_identifies_somebody_is_gone_and_the_rest_stays(text: str, clean: str) -> None:
    assert scrub(text, WHO) == clean


@pytest.mark.parametrize("name", ["root", "main", "al"])
def test_names_that_are_ordinary_words_are_replaced_in_addresses_only(name: str) -> None:
    who = Who(homes=(), user=name, host=name)
    assert scrub(f"the {name} model", who) == f"the {name} model"
    assert name not in scrub(f"http://{name}:80/ and {name}@example", who).split("model")[0]


@given(st.text(max_size=60))
def test_scrubbing_twice_changes_nothing_more(text: str) -> None:
    once = scrub(text, WHO)
    assert scrub(once, WHO) == once


def test_json_is_scrubbed_throughout() -> None:
    value = {"/home/jdoe/x": ["/home/jdoe", 1, None, {"a": "/home/jdoe/y"}]}
    assert scrub_json(value, WHO) == {"~/x": ["~", 1, None, {"a": "~/y"}]}  # type: ignore[arg-type]


def test_here_knows_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LOGNAME", "somebody")
    who = Who.here()
    assert str(tmp_path) in who.homes
    assert who.user == "somebody"
    assert who.host == socket.gethostname()
    assert scrub(f"{tmp_path}/models/x") == "~/models/x"


def test_a_user_without_a_name_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr("refract.run.scrub.getpass.getuser", nobody)
    assert Who.here().user == ""


def test_a_model_is_named_without_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "small-model"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    assert model_name(str(folder)) == model_name(f"{folder}/") == model_name("small-model") == "small-model"
    monkeypatch.chdir(folder)
    assert model_name(".") == "small-model"
    assert model_name("/absent/somewhere/a.gguf") == "a.gguf"
    assert model_name("owner/model-7b") == "owner/model-7b"
    assert model_name("http://me:secret@example.com:8000/v1?key=1") == "http://example.com:8000/v1"
