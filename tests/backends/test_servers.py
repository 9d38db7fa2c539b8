"""Addresses of running servers: one spelling, one role each, and never one server as both sides."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refract.backends._servers import (
    Places,
    absent,
    client_of,
    normal_url,
    other_kv,
    read_places,
    recall,
    remember,
    role_of,
    shown,
)
from refract.errors import ConfigMismatchError, IncompleteError, KVUnsupportedError, UsageError
from refract.kv import parse_kv

SAME = (
    "http://localhost:8000",
    "http://LOCALHOST:8000/",
    "http://127.0.0.1:8000/v1",
    "HTTP://[::1]:8000/v1/",
    " http://0.0.0.0:8000 ",
)


@pytest.mark.parametrize("url", SAME)
def test_one_server_has_one_spelling(url: str) -> None:
    assert normal_url(url) == "http://127.0.0.1:8000"


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("https://gpu.example/v1", "https://gpu.example:443"),
        ("http://gpu.example/", "http://gpu.example:80"),
        ("https://gpu.example/team/a/v1/", "https://gpu.example:443/team/a"),
        ("http://[fd00::2]:9", "http://[fd00::2]:9"),
        ("http://me:secret@gpu.example:9", "http://me:secret@gpu.example:9"),
    ],
)
def test_ports_and_paths_are_kept(url: str, found: str) -> None:
    assert normal_url(url) == found
    assert normal_url(found) == found


def test_messages_hold_no_secret() -> None:
    assert shown("http://me:secret@gpu.example:9/a") == "http://gpu.example:9/a"


def test_a_key_is_sent_where_there_is_one_and_shown_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "http://me:secret@gpu.example:9"
    monkeypatch.delenv("REFRACT_API_KEY", raising=False)
    assert client_of(url, "it", timeout_s=1.0, patience_s=2.0).headers == {}
    monkeypatch.setenv("REFRACT_API_KEY", "sesame")
    client = client_of(url, "it", timeout_s=1.0, patience_s=2.0)
    assert client.headers == {"Authorization": "Bearer sesame"}
    assert (client.name, client.timeout_s, client.patience_s) == ("it at http://gpu.example:9", 1.0, 2.0)


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://x", "http://", "http://x:port", "http://[::1", "x"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="no URL of a server"):
        normal_url(url)


@given(st.sampled_from(SAME), st.sampled_from(SAME))
def test_one_server_for_both_sides_is_refused_however_it_is_written(one: str, other: str) -> None:
    with pytest.raises(UsageError, match="one server cannot be both the reference and the candidate") as caught:
        read_places({"reference_url": one, "candidate_url": other})
    assert "--candidate-url" in (caught.value.hint or "")


def test_places() -> None:
    assert read_places({}) is None
    assert read_places({"url": "http://a:1"}) == Places(reference="http://a:1", candidate="http://a:1", shared=True)
    both = read_places({"reference_url": "http://a:1", "candidate_url": "http://a:2"})
    assert both == Places(reference="http://a:1", candidate="http://a:2")
    assert both is not None
    assert both.of("candidate") == "http://a:2"
    assert both.every == ("http://a:1", "http://a:2")
    only = read_places({"candidate_url": "http://a:2"})
    assert only is not None
    assert only.every == ("http://a:2",)
    assert only.of("reference") == ""
    with pytest.raises(UsageError, match="another URL is given too"):
        read_places({"url": "http://a:1", "candidate_url": "http://a:2"})


def test_roles_are_those_of_the_command() -> None:
    plain, small, half = map(parse_kv, ("ctk=f16,ctv=f16", "ctk=q8_0,ctv=q8_0", "ctk=q8_0,ctv=f16"))
    assert role_of(plain, {}) == "reference"
    assert role_of(small, {}) == "candidate"
    swapped = {"reference_kv": str(small), "candidate_kv": str(plain)}
    assert role_of(small, swapped) == "reference"
    assert role_of(plain, swapped) == "candidate"
    with pytest.raises(KVUnsupportedError, match="ctk=q8_0,ctv=f16 has no server"):
        role_of(half, swapped)
    assert role_of(half, {"reference_kv": str(plain), "candidate_kv": f"{small};{half}"}) == "candidate"
    assert role_of(half, {"reference_kv": str(plain), "candidate_kv": ""}) == "candidate"


def test_which_server_to_start_next() -> None:
    told = {"asked": "fp8_e4m3", "found": "auto", "start": "one with --kv-cache-dtype fp8_e4m3"}
    turn = other_kv("vLLM", "http://u:p@a:1", shared=True, **told)
    assert isinstance(turn, IncompleteError)
    assert turn.message == "the vLLM server at http://a:1 keeps auto, and fp8_e4m3 is asked for"
    assert "start one with --kv-cache-dtype fp8_e4m3 at the same address" in (turn.hint or "")
    assert isinstance(other_kv("vLLM", "http://a:1", shared=False, **told), ConfigMismatchError)
    gone = absent("openai", "candidate", "a server")
    assert gone.exit_code == 5
    assert "--candidate-url" in (gone.hint or "")


def test_what_a_server_said_is_remembered(tmp_path: Path) -> None:
    assert recall(tmp_path, "a") is None
    remember(tmp_path, "a", {"build": "b1"})
    remember(tmp_path, "b", {"build": "b2"})
    assert recall(tmp_path, "a") == {"build": "b1"}
    remember(None, "a", {"build": "b3"})
    assert recall(None, "a") is None
    for content in (b"", b"{", b"[]", b'{"version": 1}', b'{"version": 2, "key": "a", "facts": {}}'):
        for file in (tmp_path / "servers").iterdir():
            file.write_bytes(content)
        assert recall(tmp_path, "a") is None
