"""MLX caches: decoding and prefill beside mlx-lm's own, bulk decoding, and what is held, at 512, 2k and 8k tokens.

Caches are filled with random keys and values, then one token at a time goes through the default model with each in
turn, so that whatever else the machine does hits all alike. `refract fetch --model smollm2` first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from time import perf_counter
from typing import Any

from refract.backends._gguf import read_gguf
from refract.backends.mlx.blas import prepare_blas
from refract.data.models import DEFAULT_MODEL, model_path
from refract.run.cache import cache_folder

KV = "ctk=q8_0,ctv=turbo3"
LENGTHS = (512, 2048, 8192)
ROUNDS = 9
# share of the plain cache's decoding speed that is expected at 2k, and bytes over those of the codes at 8k
EXPECTED = {"dense": 0.92, "packed": 0.80}
MOST_BYTES = 1.15


def main() -> None:
    """Prints the three tables."""
    prepare_blas()
    import mlx.core as mx

    from refract.backends.mlx.gguf_model import load_gguf_model

    model = load_gguf_model(read_gguf(model_path(cache_folder(), DEFAULT_MODEL)), mx.float32)[0]
    print(f"decoding, {KV}: ms a token (median of {ROUNDS}, interleaved), share of the plain cache's speed,")
    print("bytes held a token of context, and MB that a step takes beside what is held")
    for length in LENGTHS:
        _decoding(model, length)
    print("prefill in passes of 512: tokens/s, share of the plain cache's")
    for length in (512, 2048):
        _prefill(model, length)
    print("bulk decoding of packed codes: ns a value")
    _bulk()


def caches(model: Any) -> dict[str, Callable[[], list[Any]]]:
    """What is compared, the plain cache first."""
    from mlx_lm.models.cache import make_prompt_cache as plain

    from refract.mlx import make_prompt_cache

    return {
        "plain": lambda: plain(model),
        "dense": lambda: make_prompt_cache(model, KV, storage="dense"),
        "packed": lambda: make_prompt_cache(model, KV),
        "packed, working=0": lambda: make_prompt_cache(model, KV, working=0),
    }


def _filled(make: Callable[[], list[Any]], length: int, heads: int, dim: int) -> list[Any]:
    import mlx.core as mx

    cache = make()
    for layer in cache:
        for start in range(0, length, 512):
            layer.update_and_fetch(*(mx.random.normal((1, heads, min(512, length - start), dim)) for _ in "kv"))
        mx.eval(layer.state)
    return cache


def _decoding(model: Any, length: int) -> None:
    attention = model.layers[0].self_attn
    made = {
        name: _filled(make, length, attention.n_kv_heads, attention.head_dim) for name, make in caches(model).items()
    }
    times = _interleaved({name: _step(model, cache) for name, cache in made.items()})
    for name, seconds in times.items():
        held = sum(layer.nbytes for layer in made[name])
        note = ""
        if length == 2048 and name in EXPECTED:
            note = f"  (expected {EXPECTED[name]:.2f})"
        if name.startswith("packed"):
            codes = sum(layer.k.coded_bytes + layer.v.coded_bytes for layer in made[name])
            note += f"  {held / codes:.3f} of the codes' bytes" + f" (at most {MOST_BYTES})" * (length == 8192)
        speed = f"{1e3 * seconds:7.1f} {times['plain'] / seconds:5.2f}"
        peak = _peak(_step(model, made[name])) / 1e6
        print(f"{length:6} {name:18} {speed} {held / length:8.0f} {peak:6.1f}{note}", flush=True)


def _peak(step: Callable[[], None]) -> int:
    """Bytes in use at the worst moment of a step, beyond those before it."""
    import mlx.core as mx

    before = mx.get_active_memory()
    mx.reset_peak_memory()
    step()
    return int(mx.get_peak_memory()) - int(before)


def _step(model: Any, cache: Sequence[Any]) -> Callable[[], None]:
    import mlx.core as mx

    return lambda: mx.eval(model(mx.array([[1]]), cache=cache))


def _interleaved(steps: Mapping[str, Callable[[], None]], rounds: int = ROUNDS) -> dict[str, float]:
    """The median seconds of each step, one of each a round, after one round that does not count."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds + 1):
        for name, step in steps.items():
            start = perf_counter()
            step()
            times[name].append(perf_counter() - start)
    return {name: median(found[1:]) for name, found in times.items()}


def _prefill(model: Any, length: int) -> None:
    import mlx.core as mx

    def run(make: Callable[[], list[Any]]) -> Callable[[], None]:
        def all_passes() -> None:
            cache = make()
            for _ in range(length // 512):
                mx.eval(model.model(mx.ones((1, 512), dtype=mx.int32), cache=cache))

        return all_passes

    passes = {name: run(make) for name, make in caches(model).items()}
    times = _interleaved(passes, rounds=2)
    for name, seconds in times.items():
        print(f"{length:6} {name:18} {length / seconds:7.0f} {times['plain'] / seconds:5.2f}", flush=True)


def _bulk() -> None:
    import mlx.core as mx

    from refract.backends.mlx.codecs import make_codec
    from refract.backends.mlx.packing import decode_packed, pack, unpack
    from refract.kv import Format

    for name in ("turbo2", "turbo3", "turbo4", "q4_0", "q8_0"):
        codec, x = make_codec(Format(name=name), 64), mx.random.normal((1, 3, 8192, 64))
        parts = codec.encode(x)
        packed, shapes = pack(codec, parts), tuple(part.shape[3:] for part in parts)
        mx.eval(packed)
        ways = {
            "by table": lambda: mx.eval(decode_packed(codec, packed, shapes)),  # noqa: B023  # called before the next
            "bit by bit": lambda: mx.eval(codec.decode(*unpack(codec, packed, shapes))),  # noqa: B023
        }
        print(name, {way: round(1e9 * seconds / x.size, 2) for way, seconds in _interleaved(ways).items()})


if __name__ == "__main__":
    main()
