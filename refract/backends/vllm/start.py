"""The process that runs vLLM: started by the interpreter that has it, talked to over a socket, ended with the block."""

from __future__ import annotations

import os
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from refract.atomic import write_atomically
from refract.backends._hidden import Hidden
from refract.backends._process import Child, child, described
from refract.backends.vllm.inside.wire import PROTOCOL, Array, WireError, packed, unpacked
from refract.errors import EngineError, IncompleteError, ModelError, RefractError, UsageError

PACKAGE = "refract_vllm"  # what this package's folder `inside` is called over there
_INSIDE = Path(__file__).with_name("inside")
_POLL_S = 0.5
_KILLED = 128 + 9
_ROWS = 64  # hidden states turned into logits at once, on both sides alike
_ENVIRONMENT: Mapping[str, str] = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine runs in the process we talk to
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
# Threads that spin while they wait are ten times slower where there are as many threads as cores.
_ON_PROCESSORS: Mapping[str, str] = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
_MEMORY = "use a smaller model, or --engine-arg kv_cache_memory_bytes=… or gpu_memory_utilization=…"
_REASONS: tuple[tuple[re.Pattern[str], type[EngineError | ModelError], str], ...] = (
    (re.compile(r"out of memory|No available memory|larger than the (available|maximum)", re.I), EngineError, _MEMORY),
    (
        re.compile(r"kv.?cache.?dtype|fp8.*not support|not support.*fp8", re.I),
        EngineError,
        "this device or attention backend may not have the type: see docs/engines.md",
    ),
    (
        re.compile(r"safetensors|architecture|model type|config\.json|trust_remote_code", re.I),
        ModelError,
        "check the model's folder, and that this vLLM knows its architecture",
    ),
)


def environment(platform: str) -> dict[str, str]:
    """The environment of vLLM's process: the user's own over what it has to be told."""
    told = {**_ENVIRONMENT, **(_ON_PROCESSORS if platform == "cpu" else {})}
    return told | dict(os.environ)


@contextmanager
def importable() -> Iterator[Path]:
    """A folder with the modules that run over there, under a name that hides nothing of the engine's environment."""
    with tempfile.TemporaryDirectory(prefix="refract-") as folder:
        shutil.copytree(_INSIDE, Path(folder) / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
        yield Path(folder)


def with_path(env: Mapping[str, str], folder: Path) -> dict[str, str]:
    """`env` with `folder` before everything else that is imported from."""
    rest = env.get("PYTHONPATH", "")
    return {**env, "PYTHONPATH": f"{folder}{os.pathsep}{rest}" if rest else str(folder)}


class Worker:
    """A vLLM that is loaded. `facts` is what it says it loaded."""

    def __init__(self, link: _Link) -> None:
        self._link = link
        self.facts: dict[str, Any] = {}

    def start(self, arguments: Mapping[str, str], ours: Mapping[str, Any]) -> None:
        """Loads the model. Raises: UsageError for an argument vLLM does not take, EngineError, ModelError."""
        head, _ = self._link.receive()
        if head.get("protocol") != PROTOCOL:
            raise EngineError(f"vLLM's process speaks protocol {head.get('protocol')}, expected {PROTOCOL}")
        self._link.send({"arguments": dict(arguments), "ours": dict(ours)})
        self.facts, _ = self._link.receive()

    def add(self, jobs: Sequence[Mapping[str, Any]]) -> None:
        """Queues jobs: id, prompt, max_tokens, forced, stop, keep."""
        self._link.send({"op": "add", "jobs": list(jobs)})

    def next_done(self) -> tuple[str, tuple[int, ...], Hidden | None]:
        """(id, tokens, hidden states if they were to be kept) of the next job to finish."""
        self._link.send({"op": "next"})
        head, arrays = self._link.receive()
        return str(head["id"]), tuple(head["tokens"]), arrays[0] if arrays else None

    def logits(self, hidden: Hidden) -> Hidden:
        """(n, vocabulary) logits of hidden states (n, width)."""
        self._link.send({"op": "logits", "rows": _ROWS}, hidden)
        _, (found,) = self._link.receive()
        return found


@contextmanager
def working(
    python: str,
    arguments: Mapping[str, str],
    ours: Mapping[str, Any],
    *,
    env: Mapping[str, str],
    silence_s: float,
    log: Path | None,
) -> Iterator[Worker]:
    """A loaded worker; its log is left in the file `log`.

    Raises: UsageError, ModelError, EngineError, or IncompleteError where it was killed; also while the block asks it.
    """
    with importable() as folder, socket.socket(socket.AF_UNIX) as listening:
        path = str(folder / "socket")
        listening.bind(path)
        listening.listen(1)
        code = f"from {PACKAGE}.main import main; main({path!r})"
        with child([python, "-c", code], env=with_path(env, folder)) as process:
            link = _Link(process, listening, silence_s)
            worker = Worker(link)
            try:
                worker.start(arguments, ours)
                yield worker
            finally:
                link.close()
                _keep(process.log, log)


class _Link:
    """Messages to and from the process, which may end or fall silent at any time."""

    def __init__(self, process: Child, listening: socket.socket, silence_s: float) -> None:
        self._process, self._silence_s = process, silence_s
        self._socket = self._accepted(listening)
        self._socket.settimeout(_POLL_S)

    def close(self) -> None:
        """Lets the process end by itself."""
        self._socket.close()

    def send(self, head: dict[str, Any], *arrays: Array) -> None:
        """Sends a message. Raises: EngineError, IncompleteError when the process is gone."""
        self._socket.settimeout(self._silence_s)
        try:
            for piece in packed(head, arrays):
                self._socket.sendall(piece)
        except OSError:
            raise self._gone() from None
        self._socket.settimeout(_POLL_S)

    def receive(self) -> tuple[dict[str, Any], list[Array]]:
        """The next message that is an answer. Raises: what the process says went wrong, or that it is gone."""
        while True:
            try:
                head, arrays = unpacked(self._read)
            except WireError as error:
                raise EngineError(f"vLLM's process sends {error}", hint="run the same command again") from None
            if head.get("kind") == "argument":
                raise UsageError(
                    f"vLLM does not take the arguments given: {str(head['message'])[-300:]}", hint="vllm serve --help"
                )
            if head.get("kind") == "fault":
                raise _fault(f"{head['error']}: {head['message']}")
            if head.get("kind") != "alive":
                return head, arrays

    def _accepted(self, listening: socket.socket) -> socket.socket:
        listening.settimeout(_POLL_S)
        until = time.monotonic() + self._silence_s
        while time.monotonic() < until:
            with suppress(TimeoutError):
                return listening.accept()[0]
            if self._process.status is not None:
                raise self._gone()
        raise self._silent()

    def _read(self, count: int) -> bytearray:
        data, until = bytearray(), time.monotonic() + self._silence_s
        while len(data) < count:
            try:
                piece = self._socket.recv(min(count - len(data), 1 << 20))
            except TimeoutError:
                if time.monotonic() > until:
                    raise self._silent() from None
                continue
            except OSError:
                piece = b""
            if not piece:
                raise self._gone()
            data += piece
            until = time.monotonic() + self._silence_s
        return data

    def _silent(self) -> EngineError:
        return EngineError(
            f"vLLM's process said nothing for {self._silence_s:g} s: {self._process.last_words[:200]}",
            hint="wait longer with --engine-arg silence_s=…, or look at its log in the cache folder, under logs",
        )

    def _gone(self) -> RefractError:
        status = self._process.wait(10.0)
        if status == _KILLED:
            return IncompleteError(
                "vLLM's process was killed (SIGKILL)",
                hint="often the machine ran out of memory; then run the same command again",
            )
        return _fault(f"vLLM's process ended ({described(status)}): {self._process.last_words[:300]}")


def _fault(said: str) -> RefractError:
    """The error for what vLLM says went wrong."""
    words = " ".join(said.split())
    for pattern, error, hint in _REASONS:
        if pattern.search(words):
            return error(f"vLLM: {words[:400]}", hint=hint)
    return EngineError(f"vLLM: {words[:400]}", hint="look at its log in the cache folder, under logs")


def _keep(text: str, log: Path | None) -> None:
    if log is not None:
        with suppress(OSError):
            write_atomically(log, text.encode())
