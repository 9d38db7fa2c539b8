"""A small HTTP server of one file: with ranges or without, and with every way to break off or be something else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(slots=True)
class FileServer:
    """What it serves; `cut` closes the connection after so many bytes of an answer, `asked` are the ranges wanted."""

    content: bytes
    url: str = ""
    status: int = 200
    ranges: bool = True
    cut: int | None = None
    announce: bool = True
    asked: list[str | None] = field(default_factory=list)


@contextmanager
def serving_file(content: bytes) -> Iterator[FileServer]:
    """The server, on a free port, until the block is left."""
    served = FileServer(content)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            served.asked.append(asked)
            start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and served.ranges else 0
            body = served.content[start:]
            self.close_connection = True
            self.send_response(206 if start else served.status)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(served.content) - 1}/{len(served.content)}")
            if served.announce:
                self.send_header("Content-Length", str(len(body)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body[: served.cut])

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    served.url = f"http://127.0.0.1:{server.server_address[1]}/tiny-raw.zip"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
