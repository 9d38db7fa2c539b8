"""The process that runs vLLM: `main(path)` connects to the parent's socket and does what it is asked until it ends."""

from __future__ import annotations

import socket
import time
import traceback
from typing import Any

from .arguments import ArgumentError, engine_arguments
from .engine import Engine
from .wire import PROTOCOL, Array, packed, unpacked

_ALIVE_S = 5.0  # how often a long computation says that it goes on


class _Link:
    """The socket, as messages."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._said = time.monotonic()

    def receive(self) -> tuple[dict[str, Any], list[Array]]:
        return unpacked(self._read)

    def send(self, head: dict[str, Any], *arrays: Array) -> None:
        for piece in packed(head, arrays):
            self._socket.sendall(piece)
        self._said = time.monotonic()

    def alive(self) -> None:
        """Says that work goes on, if nothing was said for a while."""
        if time.monotonic() - self._said > _ALIVE_S:
            self.send({"kind": "alive"})

    def _read(self, count: int) -> bytearray:
        data = bytearray()
        while len(data) < count:
            piece = self._socket.recv(min(count - len(data), 1 << 20))
            if not piece:
                raise SystemExit(0)  # the parent is gone
            data += piece
        return data


def main(path: str) -> None:
    """Serves one parent. A fault is told in words and ends the process."""
    link = _Link(path)
    try:
        _serve(link)
    except ArgumentError as error:
        link.send({"kind": "argument", "message": str(error)})
    except Exception as error:  # noqa: BLE001 -- the edge of the process: told to the parent, which raises it
        traceback.print_exc()
        link.send({"kind": "fault", "error": type(error).__name__, "message": str(error)})
        raise SystemExit(1) from None


def _serve(link: _Link) -> None:
    link.send({"kind": "hello", "protocol": PROTOCOL})
    order, _ = link.receive()
    engine = Engine(engine_arguments(order["arguments"], order["ours"]))
    link.send({"kind": "ready", **engine.facts()})
    while True:
        order, arrays = link.receive()
        if order["op"] == "add":
            for job in order["jobs"]:
                engine.add(job)
        elif order["op"] == "next":
            done, hidden = engine.next_done(link.alive)
            link.send({"kind": "done", **done}, *([] if hidden is None else [hidden]))
        elif order["op"] == "logits":
            link.send({"kind": "logits"}, engine.logits(arrays[0], order["rows"]))
        else:
            raise ValueError(f"unknown order {order['op']!r}")
