"""One llama-server: started on a free port of this machine, awaited, asked, and ended with all it started."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from refract.atomic import write_atomically
from refract.backends._http import Client, RefusedError
from refract.backends._process import Child, child, described
from refract.backends.llamacpp.find import Binaries, unusable
from refract.errors import EngineError, IncompleteError, ModelError, RefractError

READY_S = 900.0  # large models on slow disks
_WAIT_S = 0.05
_KILLED = 128 + 9
_HOST = "127.0.0.1"
_STARTS = 3  # another program may take the port between its choice and its use
_PORT_TAKEN = re.compile(r"couldn't bind|address already in use|bind.*failed", re.IGNORECASE)
_REASONS = (
    (re.compile(r"quantized V cache.*requires? flash_attn|V cache quantization requires flash_attn", re.I), "fa"),
    (re.compile(r"failed to load model|error loading model|invalid magic|unknown model architecture", re.I), "model"),
    (re.compile(r"failed to allocate|out of memory|cudaMalloc", re.I), "memory"),
    (re.compile(r"Unsupported cache type|(invalid|unknown|unrecognized|handling) arguments?", re.I), "flag"),
)
_HINTS = {
    "fa": "V compression needs flash attention: leave -fa off out of the extra flags",
    "model": "check the model file, and that this build knows its architecture",
    "memory": "use a shorter context, a smaller model, or fewer layers on the GPU (--llama-extra-flags '-ngl N')",
    "flag": "check the extra flags against llama-server --help",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A llama-server that is ready."""

    client: Client
    process: Child

    @property
    def log(self) -> str:
        """What it has printed so far."""
        return self.process.log

    def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a completion request.

        Raises: RefusedError for a request it cannot answer; IncompleteError when it is gone; EngineError otherwise.
        """
        answer = self.client.post("/completion", body)
        if not isinstance(answer, dict) or not isinstance(answer.get("tokens"), list):
            raise EngineError("llama-server answered without token ids", hint="use a build near b11434")
        return answer


@contextmanager
def serving(
    binaries: Binaries,
    model: Path,
    flags: Sequence[str],
    env: Mapping[str, str],
    *,
    timeout_s: float,
    ready_s: float = READY_S,
    log: Path | None = None,
) -> Iterator[Server]:
    """A server for `model` with `flags`, which win over what this module sets; its log is left in the file `log`.

    Raises: SetupError, ModelError or EngineError with the reason where it does not become ready.
    """
    for attempt in range(1, _STARTS + 1):
        port = _free_port()
        command = [*binaries.command, "-m", str(model), "--host", _HOST, "--port", str(port), *flags]
        with child(command, env=env) as process:
            url = f"http://{_HOST}:{port}"
            try:
                _await(url, process, ready_s)
            except RefractError:
                _keep(process.log, log)
                if attempt < _STARTS and _PORT_TAKEN.search(process.log):
                    continue
                raise
            client = Client(url=url, name="llama-server", timeout_s=timeout_s, gone=partial(_gone, process))
            try:
                yield Server(client=client, process=process)
            finally:
                _keep(process.log, log)
            return


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


def _gone(process: Child) -> str | None:
    return None if process.status is None else f"{described(process.status)}: {process.last_words[:200]}"


def _keep(text: str, log: Path | None) -> None:
    """Leaves the log where it can be looked at; a folder that cannot be written is no reason to fail."""
    if log is not None:
        with suppress(OSError):
            write_atomically(log, text.encode())


def _await(url: str, process: Child, ready_s: float) -> None:
    client = Client(url=url, timeout_s=5.0, patience_s=0.0)
    until = time.monotonic() + ready_s
    while True:
        if process.status is not None:
            raise why_not_ready(process.log, process.status)
        if _healthy(client):
            return
        if time.monotonic() > until:
            raise EngineError(
                f"llama-server was not ready within {ready_s:g} s: {process.last_words[:200]}",
                hint="look whether the machine has the memory for this model",
            )
        time.sleep(_WAIT_S)


def _healthy(client: Client) -> bool:
    try:
        return bool(client.get("/health").get("status") == "ok")
    except (RefusedError, IncompleteError, EngineError, AttributeError):
        return False


def why_not_ready(log: str, status: int) -> RefractError:
    """The error for a server that ended before it was ready."""
    for pattern, kind in _REASONS:
        if found := pattern.search(log):
            line = next(line for line in log.splitlines() if found[0] in line)
            message = f"llama-server refuses to start: {' '.join(line.split())[-200:]}"
            return (
                ModelError(message, hint=_HINTS[kind]) if kind == "model" else EngineError(message, hint=_HINTS[kind])
            )
    if status == _KILLED:
        return IncompleteError(
            "llama-server was killed while it started (SIGKILL)",
            hint="often the machine ran out of memory: try --engine-arg servers=1; then run the same command again",
        )
    if status in (0, 1, 127) and "cannot open shared object" not in log:
        last = next((line.strip() for line in reversed(log.splitlines()) if line.strip()), "nothing was printed")
        return EngineError(f"llama-server ended before it was ready ({described(status)}): {last[-200:]}")
    return unusable(log, status)
