"""A stand-in for an SGLang server: a model of its own, a prefix cache, and the shapes of SGLang 0.5.15's answers."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from refract.backends._sanity import sanity_window
from refract.backends._tokenizer import load_tokenizer
from refract.stats.divergence import log_softmax
from tests.backends.fake_http import FakeServer, Reply, say, serving

VOCAB = 259
EOS = 258
LAYERS, HEADS, WIDTH = 2, 1, 8
TOKENS = 4096
BYTES = {"auto": 4, "bf16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1}
NOISE = {"auto": 0.0, "bf16": 1e-3, "fp8_e4m3": 0.1, "fp8_e5m2": 0.4}


@dataclass(slots=True, kw_only=True)
class FakeSGLang:
    """What the server was started with, and how it misbehaves.

    A compressed cache moves the logits of every position whose context was read from it: in a prompt that is read in
    one pass only where `reads_cache`, elsewhere all but the tokens that came with the request.
    """

    model: str = "/somewhere/else"
    kv_type: str = "auto"
    attention: str = "torch_native"
    reads_cache: bool = True
    page_size: int = 1
    radix: bool = True
    keys: bool = True  # whether extra_key keeps prefixes apart
    flat: str = ""  # "lists" or "b64" where it has flat arrays
    version: str = "0.5.15.post1"
    seed: int = 1
    sane: bool = True  # knows the sentence by which engines are told from noise
    bytes_a_value: int = 0  # 0: what the type takes
    extra: dict[str, Any] = field(default_factory=dict)
    _prefixes: dict[str, list[tuple[int, ...]]] = field(default_factory=dict)

    def answer(self, path: str, body: Mapping[str, Any] | None) -> Reply:
        """The reply to a request."""
        if path == "/server_info":
            return say(self.info())
        if path == "/model_info":
            return say({"model_path": self.model, "weight_version": "default", "model_type": "llama"})
        if path == "/health":
            return Reply(body=b"")
        if path == "/generate" and body is not None:
            return say(self.generate(body))
        return say({"error": {"message": "Not Found"}}, status=404)

    def info(self) -> dict[str, Any]:
        """The arguments and the memory, as /server_info has them."""
        size = TOKENS * LAYERS * 2 * HEADS * WIDTH * (self.bytes_a_value or BYTES[self.kv_type])
        memory = {"weight": 0.1, "kvcache": size / (1 << 30), "token_capacity": TOKENS, "graph": 0}
        return {
            **{"version": self.version, "kv_cache_dtype": self.kv_type, "dtype": "float32", "device": "cpu"},
            **{"attention_backend": self.attention, "prefill_attention_backend": None, "tp_size": 1, "pp_size": 1},
            **{"page_size": self.page_size, "disable_radix_cache": not self.radix, "random_seed": self.seed},
            **{"model_path": self.model, "context_length": None, "internal_states": [{"memory_usage": memory}]},
            **self.extra,
        }

    def logits(self, context: Sequence[int], *, compressed: bool) -> np.ndarray[Any, np.dtype[np.float32]]:
        """What the model says after a context."""
        own = np.random.default_rng(list(context)).normal(0, 2, VOCAB)
        own[EOS] += 4.0 if sum(context) % 7 == 0 else -4.0
        known = _known()
        if self.sane and tuple(context) == known[: len(context)] and len(context) < len(known):
            own[known[len(context)]] += 20.0
        if compressed:
            own += NOISE[self.kv_type] * np.random.default_rng([*context, 7]).normal(0, 1, VOCAB)
        return own.astype(np.float32)

    def generate(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to /generate."""
        ids, wanted = tuple(body["input_ids"]), body["sampling_params"]
        count, listed = body.get("top_logprobs_num", 0), body.get("token_ids_logprob")
        start = body.get("logprob_start_len", -1)
        cached = self._cached(body, ids, start)
        meta: dict[str, Any] = {"id": body["rid"], "cached_tokens": cached, "prompt_tokens": len(ids)}
        rows, output = [], list(ids)
        stops = set() if wanted.get("ignore_eos") else {EOS, *wanted.get("stop_token_ids", [])}
        while len(output) - len(ids) < wanted["max_new_tokens"]:
            step = log_softmax(self.logits(output, compressed=self.reads_cache or cached > 0 or len(output) > len(ids)))
            rows.append(step)
            output.append(int(step.argmax()))
            if output[-1] in stops:
                break
        new = output[len(ids) :]
        meta["finish_reason"] = {"type": "stop", "matched": new[-1]} if new and new[-1] in stops else {"type": "length"}
        self._prefixes.setdefault(self._space(body), []).append(tuple(output[: len(output) - 1] if new else ids))
        if body.get("return_logprob"):
            meta["output_token_logprobs"] = [[float(r[t]), t, None] for r, t in zip(rows, new, strict=True)]
            meta["output_top_logprobs"] = [_top(row, count) for row in rows]
            if listed:
                meta["output_token_ids_logprobs"] = [[[float(r[t]), t, None] for t in listed] for r in rows]
            if start >= 0:
                meta |= self._prompt(ids, start, count, flat=bool(body.get("return_flat_raw_top_logprobs")))
        return {"text": "", "output_ids": new, "meta_info": meta}

    def _space(self, body: Mapping[str, Any]) -> str:
        return str(body.get("extra_key")) if self.keys else ""

    def _cached(self, body: Mapping[str, Any], ids: tuple[int, ...], start: int) -> int:
        """How many tokens of a prompt are known: whole pages, never the last token, nothing past the first log-prob."""
        if not self.radix:
            return 0
        longest = max((_common(ids, known) for known in self._prefixes.get(self._space(body), [])), default=0)
        longest = min(longest, len(ids) - 1, start if start >= 0 else len(ids))
        return longest // self.page_size * self.page_size

    def _prompt(self, ids: tuple[int, ...], start: int, count: int, *, flat: bool) -> dict[str, Any]:
        """What is listed from `start` on: the entry there is null, entry i is about token i given what precedes it."""
        places = range(start + 1, len(ids))
        rows = [log_softmax(self.logits(ids[:i], compressed=self.reads_cache)) for i in places]
        own = [[float(row[ids[i]]), ids[i], None] for i, row in zip(places, rows, strict=True)]
        found: dict[str, Any] = {"input_token_logprobs": [[None, ids[start], None], *own]}
        tops = [_top(row, count) for row in rows]
        if flat and self.flat:
            return found | _flattened(tops, self.flat)
        return found | {"input_top_logprobs": [None, *tops]}


def _top(row: np.ndarray[Any, Any], count: int) -> list[list[Any]]:
    order = np.argsort(-row, kind="stable")[:count]
    return [[float(row[token]), int(token), None] for token in order]


def _flattened(tops: Sequence[Sequence[Sequence[Any]]], how: str) -> dict[str, Any]:
    values = np.array([[entry[0] for entry in row] for row in tops], np.float32)
    ids = np.array([[entry[1] for entry in row] for row in tops], np.int32)
    shape = {"input_top_logprobs_shape": [len(tops) + 1, values.shape[1]], "input_top_logprobs_null_prefix": 1}
    found: dict[str, Any] = {}
    for name, array in (("val", values), ("idx", ids)):
        key = f"input_top_logprobs_{name}_flat"
        if how == "lists":
            found[key] = array.ravel().tolist()
        else:
            found |= {f"{key}_b64": base64.b64encode(array.tobytes()).decode(), f"{key}_b64_dtype": str(array.dtype)}
    return found | shape


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    return same


@contextmanager
def running(**settings: Any) -> Iterator[tuple[FakeSGLang, FakeServer]]:
    """A stand-in that runs, and the server it runs in."""
    fake = FakeSGLang(**settings)
    with serving(fake.answer) as server:
        yield fake, server


@cache
def _known() -> tuple[int, ...]:
    """The sentence that every model knows."""
    with TemporaryDirectory() as folder:
        return sanity_window(load_tokenizer(write_model(Path(folder)))).tokens


def write_model(folder: Path, *, weights: bytes = b"weights") -> Path:
    """A model folder with the stand-in's tokenizer: one token a byte, a begin and an end of the sequence."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(text, special=True) for text in ("<pad>", "<s>", "</s>")])
    folder.mkdir(parents=True, exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    config = {
        **{"model_type": "llama", "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "hidden_size": WIDTH},
        **{"num_key_value_heads": HEADS, "head_dim": WIDTH, "max_position_embeddings": 2048, "vocab_size": VOCAB},
        **{"torch_dtype": "bfloat16", "bos_token_id": VOCAB - 2, "eos_token_id": EOS},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    (folder / "model.safetensors").write_bytes(weights)
    return folder
