"""The process that runs vLLM, played by a script that speaks its protocol: answers, faults, silence, death."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

from refract.backends.vllm import start
from refract.backends.vllm.inside.wire import WireError, packed, unpacked
from refract.backends.vllm.installation import find_installation
from refract.backends.vllm.start import Worker, working
from refract.errors import EngineError, IncompleteError, MissingPackageError, ModelError, RefractError, UsageError

INSIDE = Path(start.__file__).with_name("inside")
LINK = """
import os, signal, sys, time
import numpy as np
from {package}.wire import PROTOCOL, packed, unpacked
import socket

def main(path):
    link = socket.socket(socket.AF_UNIX)
    link.connect(path)
    def read(count):
        data = bytearray()
        while len(data) < count:
            piece = link.recv(count - len(data))
            if not piece:
                raise SystemExit(0)
            data += piece
        return data
    def receive():
        return unpacked(read)
    def send(head, *arrays):
        for piece in packed(head, arrays):
            link.sendall(piece)
    print("a line of its own", flush=True)
    send({{"kind": "hello", "protocol": PROTOCOL}})
    order, _ = receive()
"""


@contextmanager
def playing(monkeypatch: pytest.MonkeyPatch, folder: Path, body: str, silence_s: float = 20.0) -> Iterator[Worker]:
    """A worker whose process does what `body` says after the greeting."""
    (folder / "inside").mkdir()
    (folder / "inside" / "__init__.py").write_text("")
    (folder / "inside" / "wire.py").write_text((INSIDE / "wire.py").read_text())
    code = LINK.format(package=start.PACKAGE) + "".join(f"    {line}\n" for line in dedent(body).splitlines())
    (folder / "inside" / "main.py").write_text(code)
    monkeypatch.setattr(start, "_INSIDE", folder / "inside")
    log = folder / "kept.log"
    with working(sys.executable, {"dtype": "float32"}, {"model": "m"}, env={}, silence_s=silence_s, log=log) as worker:
        yield worker


READY = 'send({"kind": "ready", "layers": [], **order})\n'


def test_jobs_go_out_and_answers_come_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    body = """
    order, _ = receive()
    name = order["jobs"][0]["id"]
    receive()
    send({"kind": "alive"})
    send({"kind": "done", "id": name, "tokens": [4, 5]}, np.ones((2, 3), np.float32))
    _, (hidden,) = receive()
    send({"kind": "logits"}, hidden * 2)
    receive()
    """
    with playing(monkeypatch, tmp_path, READY + dedent(body)) as worker:
        assert worker.facts["ours"] == {"model": "m"}
        worker.add([{"id": "r1"}])
        name, tokens, hidden = worker.next_done()
        assert (name, tokens) == ("r1", (4, 5))
        assert hidden is not None
        assert np.array_equal(worker.logits(hidden), np.full((2, 3), 2.0))
    assert (tmp_path / "kept.log").read_text().startswith("a line of its own")


@pytest.mark.parametrize(
    ("body", "error", "said"),
    [
        ('send({"kind": "argument", "message": "no such dtype"})', UsageError, "no such dtype"),
        ('send({"kind": "fault", "error": "ValueError", "message": "odd"})', EngineError, "ValueError: odd"),
        ('send({"kind": "fault", "error": "E", "message": "CUDA out of memory"})', EngineError, "out of memory"),
        ('send({"kind": "fault", "error": "E", "message": "no model*.safetensors"})', ModelError, "safetensors"),
        ('print("last words", flush=True); os._exit(3)', EngineError, "exit status 3.*last words"),
        ("os.kill(os.getpid(), signal.SIGKILL)", IncompleteError, "killed"),
        ('link.sendall(b"<html>" * 9); time.sleep(60)', EngineError, "a message of"),
    ],
)
def test_what_goes_wrong_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str, error: type[RefractError], said: str
) -> None:
    with pytest.raises(error, match=said) as caught, playing(monkeypatch, tmp_path, body):
        pass
    assert "\n" not in caught.value.message
    assert caught.value.hint


def test_silence_has_a_deadline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (
        pytest.raises(EngineError, match="said nothing for 2 s"),
        playing(monkeypatch, tmp_path, "time.sleep(60)", silence_s=2.0),
    ):
        pass


def test_death_between_answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with playing(monkeypatch, tmp_path, READY + "receive(); os._exit(7)") as worker:
        worker.add([{"id": "r1"}])
        with pytest.raises(EngineError, match="exit status 7"):
            worker.next_done()


def test_another_protocol_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(start, "PROTOCOL", 99)
    with (
        pytest.raises(EngineError, match="speaks protocol 1, expected 99"),
        playing(monkeypatch, tmp_path, "time.sleep(60)"),
    ):
        pass


def test_an_interpreter_without_vllm_or_none_at_all(tmp_path: Path) -> None:
    with pytest.raises(MissingPackageError, match=r"has no vLLM that can be imported: ModuleNotFoundError") as caught:
        find_installation(sys.executable, tmp_path)
    assert "--engine-arg python=" in (caught.value.hint or "")
    with pytest.raises(RefractError, match="the interpreter nothing cannot be run"):
        find_installation(str(tmp_path / "nothing"), tmp_path)


def test_messages_survive_the_wire_and_noise_does_not() -> None:
    arrays = [np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros((0, 4), np.float32)]
    stream = bytearray(b"".join(map(bytes, packed({"a": 1}, arrays))))

    def read(count: int) -> bytearray:
        piece, stream[:count] = stream[:count], b""
        return piece

    head, back = unpacked(read)
    assert head == {"a": 1}
    assert [np.array_equal(own, array) for own, array in zip(arrays, back, strict=True)] == [True, True]
    stream += b"\xff" * 64
    with pytest.raises(WireError):
        unpacked(read)
