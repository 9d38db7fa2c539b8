"""Every way in which a server, or what stands before it, can misbehave ends in one clear error."""

from __future__ import annotations

import socket

import pytest

from refract.backends._http import Client, RefusedError
from refract.errors import EngineError, IncompleteError, UsageError
from tests.backends.fake_http import Reply, say, serving


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def client(url: str, **rest: float) -> Client:
    return Client(url=url, name="the engine", **{"patience_s": 0.2, **rest})


def test_json_goes_in_and_comes_out() -> None:
    with serving(lambda path, body: say({"path": path, "body": body})) as server:
        assert client(server.url + "/").post("/x", {"a": [1]}) == {"path": "/x", "body": {"a": [1]}}
        assert client(server.url).get("/y") == {"path": "/y", "body": None}
        assert client(server.url).text("/z") == '{"path": "/z", "body": null}'


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(IncompleteError, match="the engine is gone while answering /x: the connection is refused"):
        client(f"http://127.0.0.1:{free_port()}").get("/x")


def test_a_busy_server_is_asked_again_until_it_is_ready() -> None:
    replies = [Reply(status=503), Reply(status=429), say({"ok": True})]
    with serving(lambda *_: replies.pop(0)) as server:
        assert client(server.url, patience_s=20.0).get("/x") == {"ok": True}
        assert len(server.asked) == 3


def test_one_that_stays_busy_is_refused_in_the_end() -> None:
    with serving(lambda *_: say({"error": {"message": "Loading model"}}, status=503)) as server:
        with pytest.raises(RefusedError, match="status 503: Loading model") as caught:
            client(server.url).get("/x")
        assert caught.value.status == 503


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (say({"error": {"message": "bad token", "code": 400}}, status=400), "status 400: bad token"),
        (say({"error": "plain"}, status=500), "status 500: plain"),
        (say({"detail": "no such model"}, status=404), "status 404: no such model"),
        (Reply(status=502, body=b"<html>Bad gateway</html>"), "status 502: <html>Bad gateway"),
        (Reply(status=500, body=b""), "status 500: no reason given"),
        (say(["odd"], status=400), "odd"),
    ],
)
def test_a_refusal_says_what_the_server_says(reply: Reply, said: str) -> None:
    with serving(lambda *_: reply) as server, pytest.raises(RefusedError) as caught:
        client(server.url).post("/x", {})
    assert said in caught.value.message


@pytest.mark.parametrize("body", [b"<!DOCTYPE html><p>log in", b'{"tokens": [1, 2', b""])
def test_what_is_not_json_is_quoted(body: bytes) -> None:
    with serving(lambda *_: Reply(body=body)) as server:
        with pytest.raises(EngineError, match="something that is not JSON") as caught:
            client(server.url).post("/x", {})
        assert caught.value.hint is not None


def test_a_connection_closed_in_the_middle() -> None:
    reply = Reply(body=b'{"a": 1234567890}', cut=5)
    with serving(lambda *_: reply) as server, pytest.raises(IncompleteError, match="gone while answering /x"):
        client(server.url).post("/x", {})


def test_a_server_that_takes_too_long() -> None:
    slow = Reply(wait_s=1.0)
    with serving(lambda *_: slow) as server, pytest.raises(EngineError, match=r"did not answer /x within 0\.1 s"):
        client(server.url, timeout_s=0.1).get("/x")


def test_a_server_of_ours_that_has_ended_says_why_at_once() -> None:
    gone = Client(url=f"http://127.0.0.1:{free_port()}", gone=lambda: "ended by SIGKILL", patience_s=60.0)
    with pytest.raises(IncompleteError, match="ended by SIGKILL"):
        gone.get("/x")


@pytest.mark.parametrize("url", ["localhost:8080", "ftp://x", "http://", ""])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="no URL of a server"):
        Client(url=url)
