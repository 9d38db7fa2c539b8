"""Real vLLM servers on processors, started by the tests as a user starts them.

`REFRACT_TEST_VLLM_PYTHON` names the interpreter of an environment that has vLLM.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from refract.backends._http import Client
from refract.backends._process import Child, child, described
from refract.errors import EngineError, IncompleteError

READY_S = 600.0
ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",  # two that spin are ten times slower on two cores
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server that may still be on its way up."""

    url: str
    process: Child

    def ready(self) -> str:
        """Its address, when it answers. Raises: AssertionError with what it printed when it does not."""
        until, client = time.monotonic() + READY_S, Client(url=self.url, timeout_s=5.0, patience_s=0.0)
        while time.monotonic() < until:
            status, log = self.process.status, self.process.log[-3000:]
            assert status is None, f"vLLM ended ({described(status)}): {log}"
            try:
                client.text("/health")
            except (EngineError, IncompleteError):
                time.sleep(0.5)
            else:
                return self.url
        raise AssertionError(f"vLLM was not ready within {READY_S:g} s: {self.process.log[-3000:]}")


@contextmanager
def starting(python: str, model: Path, kv: str, *flags: str, env: Mapping[str, str] | None = None) -> Iterator[Server]:
    """A server whose KV cache is of type `kv`; it ends with the block."""
    port = free_port()
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--port", str(port)]
    command += ["--host", "127.0.0.1", "--served-model-name", "smollm2", "--kv-cache-dtype", kv, "--dtype", "float32"]
    command += ["--enforce-eager", "--max-model-len", "1024", "--kv-cache-memory-bytes", str(128 << 20)]
    command += ["--max-logprobs", "1000", *flags]
    with child(command, env={**os.environ, **ENVIRONMENT, **(env or {})}) as process:
        yield Server(url=f"http://127.0.0.1:{port}", process=process)
