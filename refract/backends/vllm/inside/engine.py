"""One vLLM engine, driven step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .capture import Hidden
from .forcing import KEY


class Engine:
    """vLLM with hidden states recorded and tokens forced; jobs go in, finished ones come out as they finish."""

    def __init__(self, arguments: Any) -> None:
        from vllm.v1.engine.llm_engine import LLMEngine

        self._engine = LLMEngine.from_engine_args(arguments)
        if not all(self._engine.collective_rpc("refract_install")):
            raise RuntimeError("this vLLM has another model runner than the one whose states can be read")
        self._keeping: set[str] = set()
        self._done: list[dict[str, Any]] = []

    def facts(self) -> dict[str, Any]:
        """What was really loaded."""
        import vllm
        from vllm.platforms import current_platform

        config = self._engine.vllm_config
        layers = [layer for rank in self._engine.collective_rpc("refract_layers") for layer in rank]
        return {
            "version": vllm.__version__,
            "platform": current_platform.device_type,
            "settings": _settings(config),
            "vocab_size": config.model_config.get_vocab_size(),
            "max_model_len": config.model_config.max_model_len,
            "cache_dtype": config.cache_config.cache_dtype,
            "skipped": list(config.cache_config.kv_cache_dtype_skip_layers),
            "prefix_caching": bool(config.cache_config.enable_prefix_caching),
            "block_size": config.cache_config.block_size,
            "layers": layers,
        }

    def add(self, job: Mapping[str, Any]) -> None:
        """Queues a job: prompt ids, at most so many new ones, forced ids or none, positions whose states are kept."""
        from vllm import SamplingParams

        forced = job["forced"]
        parameters = SamplingParams(
            temperature=0.0,
            max_tokens=job["max_tokens"],
            ignore_eos=True,
            stop_token_ids=[] if forced else list(job["stop"]),
            detokenize=False,
            extra_args={KEY: forced} if forced else None,
        )
        if job["keep"] is not None:
            self._keeping.add(job["id"])
            self._engine.collective_rpc("refract_want", args=({job["id"]: tuple(job["keep"])},))
        self._engine.add_request(job["id"], {"prompt_token_ids": list(job["prompt"])}, parameters)

    def next_done(self, alive: Callable[[], None]) -> tuple[dict[str, Any], Hidden | None]:
        """The next finished job, and its hidden states if they were wanted. At least one must be queued."""
        while not self._done:
            if not self._engine.has_unfinished_requests():
                raise RuntimeError("no job is left")
            for output in self._engine.step():
                if output.finished:
                    (only,) = output.outputs
                    self._done.append({"id": output.request_id, "tokens": [int(token) for token in only.token_ids]})
            alive()
        done = self._done.pop(0)
        if done["id"] not in self._keeping:
            return done, None
        self._keeping.discard(done["id"])
        ranks = [
            states for states in self._engine.collective_rpc("refract_take", args=(done["id"],)) if states is not None
        ]
        return done, ranks[0] if ranks else np.zeros((0, 0), np.float32)

    def logits(self, hidden: Hidden, rows: int) -> Hidden:
        """(n, vocabulary) logits of hidden states (n, width)."""
        ranks = self._engine.collective_rpc("refract_logits", args=(hidden, rows))
        found: Hidden = next(states for states in ranks if states is not None)
        return found


def _settings(config: Any) -> dict[str, str]:
    """What vLLM made of the arguments that decide how sums are ordered and rounded, by their names."""
    scheduler, parallel, model = config.scheduler_config, config.parallel_config, config.model_config
    return {
        "max_num_seqs": str(scheduler.max_num_seqs),
        "max_num_batched_tokens": str(scheduler.max_num_batched_tokens),
        "tensor_parallel_size": str(parallel.tensor_parallel_size),
        "pipeline_parallel_size": str(parallel.pipeline_parallel_size),
        "enforce_eager": str(bool(model.enforce_eager)).lower(),
        "dtype": str(model.dtype).removeprefix("torch."),
    }
