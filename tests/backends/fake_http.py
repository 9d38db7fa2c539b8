"""A small HTTP server that answers as told: for the faults of servers and of what stands before them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

JSON = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One answer: `cut` closes the connection after so many bytes of the body, `wait_s` comes before it."""

    body: bytes = b"{}"
    status: int = 200
    kind: str = JSON
    cut: int | None = None
    wait_s: float = 0.0


def say(value: object, **rest: Any) -> Reply:
    """A reply of JSON."""
    return Reply(body=json.dumps(value).encode(), **rest)


Answerer = Callable[[str, Mapping[str, Any] | None], Reply]


@dataclass(slots=True)
class FakeServer:
    """`answer` maps a path and a JSON body to a reply; `asked` are all requests so far."""

    answer: Answerer
    url: str = ""
    asked: list[tuple[str, Mapping[str, Any] | None]] = field(default_factory=list)


@contextmanager
def serving(answer: Answerer, *, port: int = 0) -> Iterator[FakeServer]:
    """The server, on a free port or this one, until the block is left."""
    fake = FakeServer(answer)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._reply(None)

        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self._reply(json.loads(text) if text else None)

        def _reply(self, body: Mapping[str, Any] | None) -> None:
            fake.asked.append((self.path, body))
            reply = fake.answer(self.path, body)
            time.sleep(reply.wait_s)
            self.close_connection = True
            try:
                self.send_response(reply.status)
                self.send_header("Content-Type", reply.kind)
                self.send_header("Content-Length", str(len(reply.body)))
                self.send_header("Connection", "close")
                self.end_headers()
                self.wfile.write(reply.body[: reply.cut])
            except OSError:
                return

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    fake.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
