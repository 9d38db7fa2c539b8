"""Teacher forcing while decoding: a logits processor that leaves one token a step.

vLLM loads it by name (`logits_processors`); the tokens come with the request (`extra_args`). The masked logits choose
the token and nothing else: what is measured are the hidden states before them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

if TYPE_CHECKING:
    import torch

KEY = "refract_forced"


class Forcing(AdapterLogitsProcessor):  # type: ignore[misc]  # engines are typed as Any, see pyproject.toml
    """Answers each request that brings tokens with exactly those."""

    def is_argmax_invariant(self) -> bool:
        """It decides the token."""
        return False

    def new_req_logits_processor(self, params: Any) -> Callable[[list[int], torch.Tensor], torch.Tensor] | None:
        """What forces the tokens of one request; None for a free one."""
        forced = (params.extra_args or {}).get(KEY)
        if forced is None:
            return None

        def force(output: list[int], logits: torch.Tensor) -> torch.Tensor:
            token = forced[min(len(output), len(forced) - 1)]
            logits.fill_(float("-inf"))
            logits[token] = 0.0
            return logits

        return force
