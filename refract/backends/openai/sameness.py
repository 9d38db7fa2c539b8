"""Whether two addresses are one server, told by what only one process says or counts."""

from __future__ import annotations

import re
from typing import Any

from refract.backends._http import Client
from refract.backends.openai.offers import Offer
from refract.errors import EngineError, IncompleteError

_OWN = re.compile(r"^(?:process_start_time_seconds|\S+_info)(?:\{.*\})? \S+$", re.MULTILINE)
_ROUNDS = 2


def same_server(one: Client, other: Client, offer: Offer) -> bool:
    """Whether both addresses are known to reach one process; False where neither says anything of itself.

    vLLM and SGLang say when their process started, to the hundredth of a second, and how it is set up; llama-server
    counts its tasks.
    """
    own = [_own(client) for client in (one, other)]
    if all(own):
        return own[0] == own[1]
    return _counts_together(one, other, offer)


def _own(client: Client) -> tuple[str, ...]:
    """What its metrics say of the process itself; empty where they say nothing of when it started."""
    try:
        found = sorted(_OWN.findall(client.text("/metrics")))
    except (EngineError, IncompleteError):
        return ()
    return tuple(found) if any(line.startswith("process_start") for line in found) else ()


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
