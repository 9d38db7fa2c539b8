"""Final hidden states of chosen positions, taken from vLLM's own forward passes, and logits made of them.

vLLM mixes this class into its worker (`worker_extension_cls`), in whatever process that runs; its methods are called
through `collective_rpc`. Written against vllm/v1/worker/gpu_model_runner.py, version 0.32.0: `_model_forward` returns
the hidden states of all tokens of a step, request after request as `query_start_loc` says.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Hidden = npt.NDArray[np.float32]


class Capture:
    """The worker's methods of ours; every name starts with refract, so that none hides one of vLLM's."""

    model_runner: Any
    refract_wanted: dict[str, tuple[int, int]]
    refract_kept: dict[str, list[Hidden]]

    def refract_install(self) -> bool:
        """Starts recording every forward pass from here on. False where this vLLM has another model runner."""
        runner = self.model_runner
        self.refract_wanted, self.refract_kept = {}, {}
        forward = getattr(runner, "_model_forward", None)
        if forward is None or not hasattr(runner, "input_batch"):
            return False

        def recorded(*args: Any, **kwargs: Any) -> Any:
            output = forward(*args, **kwargs)
            if self.refract_wanted:
                self._refract_keep(output)
            return output

        runner._model_forward = recorded
        return True

    def refract_want(self, wanted: dict[str, tuple[int, int]]) -> None:
        """Keep the states of positions `first` up to but not including `last` of these requests."""
        self.refract_wanted.update(wanted)

    def refract_take(self, request: str) -> Hidden | None:
        """(n, width) states kept of a finished request, in order; None where this rank has none."""
        self.refract_wanted.pop(request, None)
        parts = self.refract_kept.pop(request, [])
        return np.concatenate(parts) if parts else None

    def refract_logits(self, hidden: Hidden, rows: int) -> Hidden | None:
        """(n, vocabulary) logits of states (n, width), `rows` at a time: one shape, so the same kernels every time."""
        import torch

        runner, found = self.model_runner, []
        dtype = runner.model_config.dtype
        for start in range(0, len(hidden), rows):
            block = np.zeros((rows, hidden.shape[1]), np.float32)
            part = hidden[start : start + rows]
            block[: len(part)] = part
            with torch.inference_mode():
                states = torch.from_numpy(block).to(device=runner.device, dtype=dtype)
                logits = runner.model.compute_logits(states)
            if logits is None:
                return None
            found.append(logits[: len(part)].float().cpu().numpy())
        return np.concatenate(found)

    def refract_layers(self) -> list[dict[str, Any]]:
        """Every layer that keeps a KV cache, as it was really allocated: types, bytes a token, attention window."""
        runner, layers = self.model_runner, []
        contexts = runner.vllm_config.compilation_config.static_forward_context
        for group in runner.kv_cache_config.kv_cache_groups:
            for name in group.layer_names:
                layer = contexts.get(name)
                specs = getattr(group.kv_cache_spec, "kv_cache_specs", None) or {}
                spec = specs.get(name, group.kv_cache_spec)
                cache = getattr(layer, "kv_cache", None)
                cache = cache[0] if isinstance(cache, (list, tuple)) and cache else cache
                layers.append(
                    {
                        "name": name,
                        "asked": str(getattr(layer, "kv_cache_dtype", "")),
                        "stored": str(getattr(cache, "dtype", "")).removeprefix("torch."),
                        "bytes": spec.page_size_bytes / spec.block_size,
                        "window": getattr(spec, "sliding_window", None),
                        "backend": _backend(layer),
                    }
                )
        return layers

    def _refract_keep(self, output: Any) -> None:
        """Copies what is wanted of one step's hidden states."""
        states = output[0] if isinstance(output, tuple) else output
        if not hasattr(states, "shape"):
            return  # a pipeline rank that hands on what is not final
        batch, starts = self.model_runner.input_batch, self.model_runner.query_start_loc.np
        for row, internal in enumerate(batch.req_ids):
            request = internal.split("-")[0]  # vLLM adds random letters to the name it is given
            if request not in self.refract_wanted:
                continue
            first, last = self.refract_wanted[request]
            begin, end = int(starts[row]), int(starts[row + 1])
            done = int(batch.num_computed_tokens_cpu[row])
            low, high = max(first, done), min(last, done + end - begin)
            if low < high:
                part = states[begin + low - done : begin + high - done]
                self.refract_kept.setdefault(request, []).append(part.float().cpu().numpy().copy())


def _backend(layer: Any) -> str:
    backend = getattr(layer, "attn_backend", None)
    try:
        return str(backend.get_name()) if backend is not None else ""
    except (AttributeError, NotImplementedError):
        return ""
