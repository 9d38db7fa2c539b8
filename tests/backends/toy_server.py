"""A toy language model behind the APIs of real servers: every number is known, and every kind of answer can be told."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from refract.backends._sanity import sanity_window
from refract.backends._tokenizer import HFTokenizer, load_tokenizer
from tests.backends.fake_http import Reply, say

SPECIAL = ["<s>", "</s>"]
CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "torch_dtype": "float16",
    "eos_token_id": 1,
}


def model_folder(folder: Path) -> Path:
    """A model directory without a weight worth the name, whose byte-level tokenizer has 300 ids."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(["the keeper counted the ships", "every evening the ships"], trainer)
    folder.mkdir(parents=True, exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


@dataclass(kw_only=True)
class Toy:
    """A server of `kind` for one model. `noise` is what its KV cache adds to every logit.

    Ids in `holes` are no whole text: llama-server leaves out what it lists of them. `most` is the longest list it
    gives; with `biased` it lists probabilities after logit_bias; `strict` refuses fields it does not know.
    """

    folder: Path
    kind: str = "llamacpp"
    noise: float = 0.0
    holes: frozenset[int] = frozenset()
    most: int = 300
    biased: bool = False
    strict: bool = False
    ids: bool = True
    build: str = "b1"
    context: int = 256
    started: str = ""
    models: tuple[str, ...] = ("toy",)
    cache: Mapping[str, str] = field(default_factory=dict)
    tasks: int = 0
    shift: int = 0  # added to what /tokenize says
    sane: bool = True  # knows the sentence by which engines are told from noise
    forces: bool = False  # writes the tokens that a request brings (vllm_xargs)

    def __post_init__(self) -> None:
        self.tokenizer: HFTokenizer = load_tokenizer(self.folder)
        self.known = sanity_window(self.tokenizer).tokens

    @property
    def vocab(self) -> int:
        return self.tokenizer.vocab_size

    def logprobs(self, ids: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Natural logarithms (V,) of what may follow `ids`."""
        seed = [len(ids), *ids[-3:]]
        logits = np.random.default_rng(seed).normal(0.0, 3.0, self.vocab)
        logits += self.noise * np.random.default_rng([7, *seed]).normal(0.0, 1.0, self.vocab)
        logits[1] = 40.0 if len(ids) % 29 == 0 else -20.0
        if self.sane and tuple(ids) == self.known[: len(ids)] and len(ids) < len(self.known):
            logits[self.known[len(ids)]] += 20.0
        return self.shifted(logits)

    @staticmethod
    def shifted(logits: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
        top = logits.max()
        return np.asarray(logits - top - np.log(np.exp(logits - top).sum()), np.float64)

    def __call__(self, path: str, body: Mapping[str, Any] | None) -> Reply:
        known = {"/v1/models": self._models, "/metrics": self._metrics, "/slots": self._slots, "/props": self._props}
        if path in known:
            return known[path]()
        if path == "/version" and self.kind == "vllm":
            return say({"version": self.build})
        if path in ("/get_server_info", "/server_info") and self.kind == "sglang":
            return say({"version": self.build})
        if path == "/tokenize" and body is not None and self.kind != "other":
            key = "content" if self.kind == "llamacpp" else "prompt"
            return say({"tokens": [token + self.shift for token in self.tokenizer.encode(body[key])]})
        if path == "/v1/completions" and body is not None:
            return self._complete(body)
        return say({"error": {"message": "no such path"}}, status=404)

    def _models(self) -> Reply:
        more = {"meta": {"n_ctx": self.context}} if self.kind == "llamacpp" else {"max_model_len": self.context}
        return say({"data": [{"id": name, "owned_by": self.kind, **more} for name in self.models]})

    def _props(self) -> Reply:
        return say({"default_generation_settings": {"n_ctx": self.context}})

    def _slots(self) -> Reply:
        return say([{"id": 0, "id_task": self.tasks}]) if self.kind == "llamacpp" else say({}, status=404)

    def _metrics(self) -> Reply:
        if self.kind == "llamacpp" or not (self.started or self.cache):
            return say({"error": {"message": "no metrics"}}, status=501)
        labels = ",".join(f'{name}="{value}"' for name, value in self.cache.items())
        text = f"process_start_time_seconds {self.started or '1.5'}\nvllm:cache_config_info{{{labels}}} 1.0\n"
        return Reply(body=text.encode(), kind="text/plain")

    def _complete(self, body: Mapping[str, Any]) -> Reply:
        self.tasks += 1
        unknown = {"return_token_ids", "return_tokens_as_token_ids", "cache_prompt", "samplers", "cache_salt"}
        if self.strict and unknown & set(body):
            return say({"error": {"message": "unrecognized request argument"}}, status=400)
        if isinstance(body["prompt"], str):
            prompt = list(self.tokenizer.encode(body["prompt"]))
        elif not self.ids:
            return say({"error": {"message": "prompt must be a string"}}, status=400)
        else:
            prompt = list(body["prompt"])
        if any(not 0 <= token < self.vocab for token in prompt):
            return say({"error": {"message": "invalid token"}}, status=400)
        if (body.get("logprobs") or 0) > self.most or (body.get("prompt_logprobs") or 0) > self.most:
            return say({"error": {"message": f"at most {self.most} log-probabilities"}}, status=400)
        return self._answer(body, prompt)

    def _answer(self, body: Mapping[str, Any], prompt: list[int]) -> Reply:
        forced = [int(part.strip("<>[]")) for part in body.get("grammar", "").split()[2:]]
        if self.forces:
            forced = (body.get("vllm_xargs") or {}).get("refract_forced", [])
        elif forced and (self.holes & set(forced) or 1 in forced):
            return say({"error": {"message": "failed to parse grammar"}}, status=500)
        tokens, rows = self._decode(body, prompt, forced)
        whole = body.get("logprobs")
        kept = [i for i, token in enumerate(tokens) if token not in self.holes or self.kind != "llamacpp"]
        choice: dict[str, Any] = {
            "index": 0,
            "text": self.tokenizer.decode([token for token in tokens if token != 1]),
            "finish_reason": "stop" if tokens and tokens[-1] == 1 else "length",
        }
        if whole is not None and self.ids:
            chosen = [(tokens[i], rows[i]) for i in kept]
            choice["logprobs"] = (
                self._content(chosen, whole) if self.kind == "llamacpp" else self._legacy(chosen, whole)
            )
        if body.get("return_token_ids") and self.kind == "vllm":
            choice["token_ids"] = tokens
        if body.get("prompt_logprobs") is not None:
            choice["prompt_logprobs"] = self._prompt(prompt, body["prompt_logprobs"])
        usage = {"completion_tokens": len(tokens), "prompt_tokens": len(prompt)}
        answer = {"id": f"cmpl-{body.get('request_id', 'x')}", "choices": [choice], "usage": usage}
        if self.kind == "llamacpp":
            answer["system_fingerprint"] = self.build
        return say(answer)

    def _decode(
        self, body: Mapping[str, Any], prompt: list[int], forced: list[int]
    ) -> tuple[list[int], list[np.ndarray[Any, np.dtype[np.float64]]]]:
        """The generated ids, and what is listed at each."""
        tokens: list[int] = []
        rows = []
        allowed, stops = body.get("allowed_token_ids"), set(body.get("stop_token_ids") or ())
        ends = stops if body.get("ignore_eos") else stops | {1}
        while len(tokens) < body["max_tokens"] and not (tokens and tokens[-1] in ends):
            row = self.logprobs([*prompt, *tokens])
            chosen = row.copy()
            for token, bias in dict(body.get("logit_bias") or {}).items():
                chosen[int(token)] += bias
            if allowed is not None:
                chosen[[i for i in range(self.vocab) if i not in allowed]] = -np.inf
            if len(tokens) < body.get("min_tokens", 0):
                chosen[list(ends)] = -np.inf
            rows.append(self.shifted(chosen) if self.biased else row)
            tokens.append(forced[len(tokens)] if forced else int(np.argmax(chosen)))
        return tokens, rows

    def _content(self, chosen: Sequence[tuple[int, Any]], count: int) -> dict[str, Any]:
        return {
            "content": [
                {
                    "id": token,
                    "logprob": float(row[token]),
                    "top_logprobs": [{"id": int(i), "logprob": float(row[i])} for i in np.argsort(-row)[:count]],
                }
                for token, row in chosen
            ]
        }

    def _legacy(self, chosen: Sequence[tuple[int, Any]], count: int) -> dict[str, Any]:
        if self.kind == "other":  # tokens as text, which tells no ids
            return {"tokens": ["x"] * len(chosen), "token_logprobs": [0.0] * len(chosen), "top_logprobs": None}
        tops = [
            {f"token_id:{i}": float(row[i]) for i in dict.fromkeys([token, *map(int, np.argsort(-row)[:count])])}
            for token, row in chosen
        ]
        return {
            "tokens": [f"token_id:{token}" for token, _ in chosen],
            "token_logprobs": [float(row[token]) for token, row in chosen],
            "top_logprobs": tops,
        }

    def _prompt(self, prompt: list[int], count: int) -> list[Any]:
        found: list[Any] = [None]
        for place in range(1, len(prompt)):
            row, own = self.logprobs(prompt[:place]), prompt[place]
            best = dict.fromkeys([own, *map(int, np.argsort(-row)[:count])])
            found.append({str(i): {"logprob": float(row[i]), "rank": 1} for i in best})
        return found
