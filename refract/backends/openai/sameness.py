"""Whether two addresses are one server, told by what only one process says or counts."""

from __future__ import annotations

import re
from typing import Any

from refract.backends._http import Client
from refract.backends.openai.offers import Offer
from refract.errors import EngineError, IncompleteError

_STARTED = re.compile(r"^process_start_time_seconds(?:\{[^}]*\})? (\S+)$", re.MULTILINE)
_ROUNDS = 2


def same_server(one: Client, other: Client, offer: Offer) -> bool:
    """Whether both addresses are known to reach one process; False where neither says anything of itself.

    vLLM and SGLang say when their process started, to the hundredth of a second; llama-server counts its tasks.
    """
    started = [_started(client) for client in (one, other)]
    if None not in started:
        return started[0] == started[1]
    return _counts_together(one, other, offer)


def _started(client: Client) -> str | None:
    try:
        found = _STARTED.search(client.text("/metrics"))
    except (EngineError, IncompleteError):
        return None
    return found[1] if found else None


def _counts_together(one: Client, other: Client, offer: Offer) -> bool:
    """Whether what is asked of one server is counted by the other, every time."""
    for _ in range(_ROUNDS):
        before = _tasks(other)
        body: dict[str, Any] = {"model": offer.model, "prompt": "a", "max_tokens": 1}
        one.post("/v1/completions", body)
        after = _tasks(other)
        if before is None or after is None or before == after:
            return False
    return True


def _tasks(client: Client) -> tuple[int, ...] | None:
    """The number of the last task of every slot."""
    try:
        slots = client.get("/slots")
    except (EngineError, IncompleteError):
        return None
    if not isinstance(slots, list) or not all(isinstance(slot, dict) for slot in slots):
        return None
    return tuple(int(slot.get("id_task", -1)) for slot in slots)
