"""One llama-server: started on a free port of this machine, awaited, asked, and ended with all it started."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refract.backends._http import Client
from refract.backends._launching import HOST, Launch, launched
from refract.backends._process import Child, described
from refract.backends.llamacpp.find import Binaries, unusable
from refract.errors import EngineError, IncompleteError, ModelError, RefractError

READY_S = 900.0  # large models on slow disks
_KILLED = 128 + 9
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
    launch = Launch(
        name="llama-server",
        command=lambda port: [*binaries.command, "-m", str(model), "--host", HOST, "--port", str(port), *flags],
        env=env,
        failed=why_not_ready,
        port_taken=_PORT_TAKEN,
        slow_hint="look whether the machine has the memory for this model",
        ready_s=ready_s,
    )
    with launched(launch, timeout_s=timeout_s, log=log) as (client, process):
        yield Server(client=client, process=process)


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
