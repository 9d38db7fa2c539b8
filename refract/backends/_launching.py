"""A server of our own: started on a free port of this machine, awaited, and ended with all it started."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from refract.atomic import write_atomically
from refract.backends._http import Client, RefusedError
from refract.backends._process import Child, child, described
from refract.errors import EngineError, IncompleteError, RefractError

HOST = "127.0.0.1"
_HIGHEST_PORT = 65535
_STARTS = 3  # another program may take the port between its choice and its use
_PROBES = 64  # ports looked at for one that is low enough
_WAIT_S, _LONGEST_WAIT_S, _SLOWER = 0.05, 0.5, 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How a server is started and awaited.

    `command` gives its words for a port of HOST, `failed` the error for its log and its exit status when it ended
    before it was ready. `port_taken` is what it then says of its port; `slow_hint` what to do when it takes too long.
    """

    name: str
    command: Callable[[int], list[str]]
    env: Mapping[str, str]
    failed: Callable[[str, int], RefractError]
    port_taken: re.Pattern[str]
    slow_hint: str
    ready_s: float
    health_s: float = 5.0  # for an answer of /health
    highest_port: int = _HIGHEST_PORT


@contextmanager
def launched(launch: Launch, *, timeout_s: float, log: Path | None) -> Iterator[tuple[Client, Child]]:
    """A server that is ready, with a client of it; what it has printed is left in the file `log`.

    Raises: what `launch.failed` gives, and EngineError, where it does not become ready.
    """
    for attempt in range(1, _STARTS + 1):
        port = free_port(launch.highest_port)
        with child(launch.command(port), env=launch.env) as process:
            url = f"http://{HOST}:{port}"
            try:
                _await(launch, url, process)
            except RefractError:
                _keep(process.log, log)
                if attempt < _STARTS and launch.port_taken.search(process.log):
                    continue
                raise
            try:
                yield Client(url=url, name=launch.name, timeout_s=timeout_s, gone=partial(_gone, process)), process
            finally:
                _keep(process.log, log)
            return


def free_port(highest: int = _HIGHEST_PORT) -> int:
    """A port of this machine that nothing uses, up to `highest`. Raises: EngineError where the system offers none."""
    with ExitStack() as held:  # those too high are held meanwhile, or they might be offered again
        for _ in range(_PROBES):
            probe = held.enter_context(socket.socket())
            probe.bind((HOST, 0))
            port = int(probe.getsockname()[1])
            if port <= highest:
                return port
    raise EngineError(
        f"none of {_PROBES} free ports is below {highest + 1}",
        hint="widen the range the system takes them from (net.ipv4.ip_local_port_range)",
    )


def _gone(process: Child) -> str | None:
    return None if process.status is None else f"{described(process.status)}: {process.last_words[:200]}"


def _keep(text: str, log: Path | None) -> None:
    """Leaves the log where it can be looked at; a folder that cannot be written is no reason to fail."""
    if log is not None:
        with suppress(OSError):
            write_atomically(log, text.encode())


def _await(launch: Launch, url: str, process: Child) -> None:
    client = Client(url=url, name=launch.name, timeout_s=launch.health_s, patience_s=0.0)
    until, wait = time.monotonic() + launch.ready_s, _WAIT_S
    while True:
        if process.status is not None:
            raise launch.failed(process.log, process.status)
        if _healthy(client):
            return
        if time.monotonic() > until:
            raise EngineError(
                f"{launch.name} was not ready within {launch.ready_s:g} s: {process.last_words[:200]}",
                hint=launch.slow_hint,
            )
        time.sleep(wait)
        wait = min(_LONGEST_WAIT_S, _SLOWER * wait)


def _healthy(client: Client) -> bool:
    """Whether it answers: SGLang's /health has no body, so what counts is that it is no refusal."""
    try:
        client.text("/health")
    except (RefusedError, IncompleteError, EngineError):
        return False
    return True
