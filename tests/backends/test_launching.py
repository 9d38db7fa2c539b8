"""Servers of our own: started where a port is free, awaited, said to have failed in the engine's own words, ended."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from refract.backends import _launching
from refract.backends._launching import HOST, Launch, free_port, launched
from refract.errors import EngineError, IncompleteError, ModelError, RefractError
from tests.backends.test_process import alive, until

# A server that is not ready at once: what it says of its health, by how often it was asked.
SERVER = """
import os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
statuses = [int(word) for word in sys.argv[2:]]
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        status = statuses.pop(0) if len(statuses) > 1 else statuses[0]
        self.send_response(status); self.send_header("Content-Length", "0"); self.end_headers()
    def log_message(self, *_): pass
print("pid", os.getpid(), flush=True)
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def launch(*words: str, code: str = SERVER, **changed: object) -> Launch:
    values: dict[str, object] = {
        "name": "the toy",
        "command": lambda port: [sys.executable, "-c", code, str(port), *words],
        "env": dict(os.environ),
        "failed": lambda log, status: ModelError(f"{status}: {log.strip()}"),
        "port_taken": re.compile("in use"),
        "slow_hint": "wait longer",
        "ready_s": 20.0,
    }
    return Launch(**{**values, **changed})  # type: ignore[arg-type]


def refusal(how: Launch, log: Path | None = None) -> RefractError:
    with pytest.raises(RefractError) as caught, launched(how, timeout_s=5.0, log=log):
        pass
    return caught.value


def test_a_server_is_there_when_its_health_is_no_refusal_and_gone_after_the_block(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "toy.log"
    with launched(launch("503", "500", "200"), timeout_s=5.0, log=log) as (client, process):
        assert client.text("/") == ""
        assert client.url.startswith(f"http://{HOST}:")
        pid = int(process.log.split()[1])
        assert alive(pid)
    assert until(lambda: not alive(pid))
    assert log.read_text() == f"pid {pid}\n"


def test_a_server_that_ends_in_the_middle_is_said_to_have_ended(tmp_path: Path) -> None:
    with launched(launch("200"), timeout_s=5.0, log=None) as (client, process):
        os.kill(int(process.log.split()[1]), signal.SIGKILL)
        with pytest.raises(IncompleteError, match=r"the toy is gone while answering /: ended by SIGKILL"):
            client.text("/")


def test_a_server_that_ends_before_it_is_ready_is_explained_by_its_engine(tmp_path: Path) -> None:
    log = tmp_path / "toy.log"
    error = refusal(launch(code="import sys; print('no such model'); sys.exit(3)"), log)
    assert (type(error), error.message) == (ModelError, "3: no such model")
    assert log.read_text() == "no such model\n"


def test_a_server_that_is_never_ready_has_a_deadline() -> None:
    error = refusal(launch("503", ready_s=0.3))
    assert type(error) is EngineError
    assert error.message.startswith("the toy was not ready within 0.3 s")
    assert error.hint == "wait longer"


def test_a_port_that_another_took_meanwhile_is_exchanged_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    offered = [1, 2, free_port()]
    monkeypatch.setattr(_launching, "free_port", lambda _: offered.pop(0))
    code = "import sys\nif int(sys.argv[1]) < 3: sys.exit('address in use')\n" + SERVER
    with launched(launch("200", code=code), timeout_s=5.0, log=None) as (client, _):
        assert client.text("/") == ""
    assert offered == []


def test_it_is_not_started_over_and_over() -> None:
    started: list[int] = []

    def command(port: int) -> list[str]:
        started.append(port)
        return [sys.executable, "-c", "import sys; sys.exit('address in use')"]

    assert "in use" in refusal(launch(command=command)).message
    assert len(started) == 3


def test_a_log_that_cannot_be_left_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with launched(launch("200"), timeout_s=5.0, log=tmp_path / "file" / "toy.log") as (client, _):
        assert client.text("/") == ""


def ports(monkeypatch: pytest.MonkeyPatch, offer: Callable[[], int]) -> None:
    """Lets the system offer these ports."""

    class Probe:
        def __enter__(self) -> Probe:
            return self

        def __exit__(self, *_: object) -> None: ...

        def bind(self, _: object) -> None:
            self.port = offer()

        def getsockname(self) -> tuple[str, int]:
            return HOST, self.port

    monkeypatch.setattr(_launching.socket, "socket", Probe)


def test_a_port_is_low_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < free_port() < 65536
    offered = iter((60001, 55536, 55535))
    ports(monkeypatch, lambda: next(offered))
    assert free_port(55535) == 55535


def test_a_system_without_a_low_port_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    ports(monkeypatch, lambda: 60000)
    with pytest.raises(EngineError, match="below 55536") as caught:
        free_port(55535)
    assert "ip_local_port_range" in str(caught.value.hint)
