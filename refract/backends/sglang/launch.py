"""One SGLang server of our own: what it is started with, and why it does not start."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from refract.backends._http import Client
from refract.backends._launching import HOST, Launch, launched
from refract.backends._process import described
from refract.backends.sglang.arguments import Installation
from refract.errors import EngineError, IncompleteError, ModelError, RefractError

_HEALTH_S = 30.0  # it generates a token to answer, and gives itself 20 seconds
# It takes another port 10,000 above its own, and ends where there is none (SGLang 0.5.15, ServerArgs: grpc_port).
_HIGHEST_PORT = 65535 - 10_000
_KILLED = 128 + 9
_SPARE_TOKENS = 64
_LEAST_TOKENS = 8192
_PORT_TAKEN = re.compile(r"address already in use|port \d+ is not available", re.IGNORECASE)
_ERROR_LINE = re.compile(r"^\S*(Error|Exception): .+|^.*error: .+", re.MULTILINE)
_REASONS = (
    (re.compile(r"out of memory|Not enough memory|CUDA_ERROR_OUT_OF", re.IGNORECASE), "memory"),
    (re.compile(r"torchvision::nms does not exist", re.IGNORECASE), "torchvision"),
    (re.compile(r"kv.?cache.?dtype|fp8.*not support|not support.*fp8", re.IGNORECASE), "kv"),
    (re.compile(r"No such file|safetensors|does not appear to have a file|not a valid model", re.IGNORECASE), "model"),
)
_HINTS = {
    "memory": "use a smaller model, or --engine-arg mem_fraction_static=… and max_total_tokens=…",
    "torchvision": "install the torchvision that belongs to this torch (for CPU: from PyTorch's own CPU index)",
    "kv": "this device or attention backend may not have the type: see docs/engines.md",
    "model": "check the model's folder, and that this SGLang knows its architecture",
}


def defaults(installation: Installation, device: str, *, max_tokens: int, lanes: int) -> dict[str, str]:
    """The arguments a server is started with where the user sets no other; those this version lacks are left out.

    A page of one token lets a prompt be read one token at a time. On processors the model runs in float32 with the
    kernels that every machine has, and an idle server sleeps.
    """
    chosen = {"page_size": "1", "skip_server_warmup": "true"}
    if device == "cpu":
        tokens = max(_LEAST_TOKENS, 2 * lanes * (max_tokens + _SPARE_TOKENS))
        chosen |= {"device": "cpu", "attention_backend": "torch_native", "sampling_backend": "pytorch"}
        chosen |= {"dtype": "float32", "max_total_tokens": str(tokens), "sleep_on_idle": "true"}
        chosen |= {"disable_overlap_schedule": "true", "disable_cuda_graph": "true"}
    return {name: value for name, value in chosen.items() if installation.has(name)}


def environment(device: str) -> dict[str, str]:
    """The environment of a server: the user's own, and what SGLang needs to be told on processors."""
    ours = {"SGLANG_USE_CPU_ENGINE": "1", "OMP_WAIT_POLICY": "passive"} if device == "cpu" else {}
    return ours | dict(os.environ)


@contextmanager
def serving(
    installation: Installation,
    model: Path,
    words: Sequence[str],
    *,
    env: Mapping[str, str],
    timeout_s: float,
    ready_s: float,
    log: Path | None,
) -> Iterator[Client]:
    """A client of a server for `model` that is ready; its log is left in the file `log`.

    Raises: ModelError, IncompleteError or EngineError with the reason where it does not become ready.
    """
    fixed = [installation.python, "-m", "sglang.launch_server", "--model-path", str(model), "--host", HOST]
    launch = Launch(
        name="SGLang",
        command=lambda port: [*fixed, "--port", str(port), *words],
        env=env,
        failed=why_not_ready,
        port_taken=_PORT_TAKEN,
        slow_hint="wait longer with --engine-arg ready_s=…, or look at its log in the cache folder, under logs",
        ready_s=ready_s,
        health_s=_HEALTH_S,
        highest_port=_HIGHEST_PORT,
    )
    with launched(launch, timeout_s=timeout_s, log=log) as (client, _):
        yield client


def why_not_ready(log: str, status: int) -> RefractError:
    """The error for a server that ended before it was ready."""
    if status == _KILLED:
        return IncompleteError(
            "SGLang was killed while it started (SIGKILL)",
            hint="often the machine ran out of memory; then run the same command again",
        )
    lines = [found[0].strip() for found in _ERROR_LINE.finditer(log)]
    last = (lines or [line.strip() for line in log.splitlines() if line.strip()] or ["nothing was printed"])[-1]
    kind = next((kind for pattern, kind in _REASONS if pattern.search(last)), "")
    error = ModelError if kind == "model" else EngineError
    return error(
        f"SGLang ended before it was ready ({described(status)}): {last[-200:]}",
        hint=_HINTS.get(kind, "look at its log in the cache folder, under logs"),
    )
