"""The vLLM engine: in a process of its own for each configuration, or, where an address is given, running servers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from refract.backends._kv_heads import kv_heads
from refract.backends._models import Models
from refract.backends._options import refuse_no_number
from refract.backends._sanity import refuse_garbage, sanity_window, with_room
from refract.backends._source import ModelSource
from refract.backends._tokenizer import HFTokenizer
from refract.backends.vllm.allocated import check_settings, effective_kv
from refract.backends.vllm.http_session import HTTPVLLM
from refract.backends.vllm.installation import Installation, find_installation
from refract.backends.vllm.kvtypes import effective_type, is_plain, reads_cache_in_prefill, refuse_type
from refract.backends.vllm.session import VLLMSession
from refract.backends.vllm.start import PACKAGE, environment, working
from refract.engine import PLACES, Blobs, Capability, Check, Engine, Identity, LoadSpec, Session
from refract.errors import EngineError
from refract.kv import KVConfig
from refract.work import ScoreTokens, TokenScores

_OPTIONS: Mapping[str, str] = {
    "python": "",  # the interpreter of vLLM's own environment; this one without it
    "parallel": "1",  # sequences at once; with more than one answers depend on their neighbours
    "silence_s": "900",  # how long vLLM's process may say nothing, loading included
    "launch": "",  # it always is
}
_FREE = frozenset({"silence_s", "launch"})  # options that change no answer
_NUMBERS = ("parallel", "silence_s")
_MOST = 1 << 20
_SERVERS = ("url", "reference_url", "candidate_url")
_CHUNKS = ("160", "96")  # tokens of a forward pass under a control
_CHUNK = "max_num_batched_tokens"
_LEAST_CACHE_BYTES = 256 << 20
_BLOCK_TOKENS = 256  # no block of vLLM's holds more
_BY_PREFILL = frozenset({Capability.KL_PREFILL, Capability.KL_DEEP})


def vllm_engine(options: Mapping[str, str] | None = None, cache_dir: Path | None = None) -> Engine:
    """The engine that asks the servers named in `options`, or the one that runs vLLM itself where none is named.

    Raises: UsageError for an option it cannot take.
    """
    options = options or {}
    if any(options.get(name) for name in _SERVERS):
        return HTTPVLLM(options, cache_dir)
    return VLLMEngine(options, cache_dir)


class VLLMEngine:
    """Runs vLLM in a child process for each configuration, and reads hidden states from its forward passes."""

    name = "vllm"
    control_by_default = False

    def __init__(self, options: Mapping[str, str] | None = None, cache_dir: Path | None = None) -> None:
        """Raises: UsageError for a value that an option of ours cannot take; vLLM's own are checked before a load."""
        self._options = dict(_OPTIONS) | dict(options or {})
        self._cache_dir = cache_dir
        self._models = Models("vLLM", cache_dir, form="folder")
        _check_options(self._options)

    @cached_property
    def installation(self) -> Installation:
        """The vLLM that is run. Raises: SetupError, MissingPackageError."""
        return find_installation(self._options["python"], self._cache_dir)

    def capabilities(self, kv: KVConfig) -> frozenset[Capability]:
        """Everything; without the pass over a prompt where it does not read what the cache stores."""
        reads = reads_cache_in_prefill(effective_type(kv), self.installation.platform)
        return frozenset(Capability) - (frozenset() if reads else _BY_PREFILL)

    def check(self, model: str) -> list[Check]:
        """vLLM with what it runs on, and the model's files."""
        found, source = self.installation, self._models.source(model)
        return [
            Check(name="vllm", status="ok", message=f"{found.version} on {found.platform}"),
            Check(name="model", status="ok", message=f"{source.name}: {source.architecture}, {source.weights}"),
        ]

    def check_kv(self, model: str, kv: KVConfig) -> None:
        """Raises: KVUnsupportedError for what vLLM lacks on this platform, UsageError for arguments it lacks."""
        source = self._models.source(model)
        refuse_type(effective_type(kv), self.installation.platform)
        kv.own_layers(source.layers)
        self.installation.check(_arguments_of(self._options))

    def tokenizer(self, model: str) -> HFTokenizer:
        """The model's tokenizer; vLLM is sent token ids."""
        return self._models.tokenizer(model)

    def context_length(self, model: str) -> int:
        """The longest sequence the model was trained for."""
        return self._models.source(model).context_length

    def identify(self, spec: LoadSpec) -> Identity:
        """vLLM's version and platform, the model's files, and every option that can change an answer."""
        options = self._effective(spec)
        kept = {name: value for name, value in options.items() if name not in PLACES | _FREE}
        return Identity(
            engine=self.name,
            build=self.installation.version,
            model=self._models.fingerprint(spec.model),
            kv=str(spec.kv),
            max_tokens=0,
            options={
                **_defaults(self.installation.platform, int(options["parallel"])),
                **kept,
                "way": "process",
                "platform": self.installation.platform,
                "threads": os.environ.get("OMP_NUM_THREADS", ""),
            },
        )

    def control_options(self, options: Mapping[str, str], kv: KVConfig) -> Mapping[str, str] | None:
        """Prompts read in small pieces: other shapes, and so another order of their sums."""
        usual, other = _CHUNKS
        return {_CHUNK: other if (self._options | dict(options)).get(_CHUNK) == usual else usual}

    def describe(self, model: str) -> Mapping[str, str | int]:
        """Architecture, layers, head dimension, how the weights are stored, and what they run on."""
        return self._models.describe(model, device=self.installation.platform)

    def load(self, spec: LoadSpec, blobs: Blobs) -> AbstractContextManager[Session]:
        """A session under `spec.kv`.

        Raises: ConfigMismatchError, ModelError, UsageError, EngineError; IncompleteError where vLLM was killed.
        """
        return self._session(spec, blobs)

    @contextmanager
    def _session(self, spec: LoadSpec, blobs: Blobs) -> Iterator[Session]:
        self.check_kv(spec.model, spec.kv)
        source, tokenizer, options = self._models.source(spec.model), self.tokenizer(spec.model), self._effective(spec)
        spec = with_room(spec, tokenizer)
        asked, platform, lanes = effective_type(spec.kv), self.installation.platform, int(options["parallel"])
        values = 2 * kv_heads(source) * source.head_dim
        room = {"kv_cache_memory_bytes": str(_cache_bytes(source, values, lanes * (spec.max_tokens + _BLOCK_TOKENS)))}
        arguments = (room if platform == "cpu" else {}) | _defaults(platform, lanes) | _arguments_of(options)
        with working(
            self.installation.python,
            arguments,
            _ours(source, spec, asked),
            env=environment(platform),
            silence_s=float(options["silence_s"]),
            log=None if self._cache_dir is None else self._cache_dir / "logs" / f"vllm-{asked}.log",
        ) as worker:
            check_settings(arguments, worker.facts["settings"])
            effective = effective_kv(
                spec.kv, asked, worker.facts, layers=source.layers, values=values, head_dim=source.head_dim
            )
            session = VLLMSession(
                worker,
                blobs=blobs,
                effective_kv=replace(effective, notes=(*effective.notes, *_notes(lanes))),
                eos_ids=tokenizer.eos_ids,
                vocab_size=tokenizer.vocab_size,
                max_tokens=spec.max_tokens,
                prefill=reads_cache_in_prefill(asked, platform),
            )
            _refuse_garbage(session, tokenizer, asked)
            yield session

    def _effective(self, spec: LoadSpec) -> dict[str, str]:
        """Every option with its value: the spec's own over those the engine was made with."""
        options = self._options | dict(spec.options)
        _check_options(options)
        return options


def _notes(lanes: int) -> list[str]:
    return [f"{lanes} sequences are decoded together: answers depend on their neighbours"] if lanes > 1 else []


def _arguments_of(options: Mapping[str, str]) -> dict[str, str]:
    """The options that are vLLM's own arguments."""
    return {name: value for name, value in options.items() if name not in {*_OPTIONS, *PLACES}}


def _defaults(platform: str, lanes: int) -> dict[str, str]:
    """vLLM's arguments where the user sets no other: no graphs are captured, and processors compute in float32."""
    chosen = {"max_num_seqs": str(lanes), "enforce_eager": "true"}
    return chosen | ({"dtype": "float32"} if platform == "cpu" else {})


def _ours(source: ModelSource, spec: LoadSpec, asked: str) -> dict[str, Any]:
    """What the measurement sets, whatever the user says."""
    spared = sorted(set(range(source.layers)) - spec.kv.own_layers(source.layers)[0])
    return {
        "model": str(source.path),
        "kv_cache_dtype": asked,
        "kv_cache_dtype_skip_layers": [] if is_plain(asked) else [str(layer) for layer in spared],
        "enable_prefix_caching": False,
        "max_model_len": spec.max_tokens + 1,
        "skip_tokenizer_init": True,
        "async_scheduling": False,
        "disable_log_stats": True,
        "worker_extension_cls": f"{PACKAGE}.capture.Capture",
        "logits_processors": [f"{PACKAGE}.forcing:Forcing"],
    }


def _cache_bytes(source: ModelSource, values: int, tokens: int) -> int:
    """Memory in which so many tokens fit uncompressed in float32."""
    return max(_LEAST_CACHE_BYTES, 4 * values * source.layers * tokens)


def _refuse_garbage(session: VLLMSession, tokenizer: HFTokenizer, asked: str) -> None:
    window = sanity_window(tokenizer)
    ((_, found),) = session.run([ScoreTokens(tokens=window.tokens, start=window.start, top_k=0)])
    if not isinstance(found, TokenScores):
        raise EngineError(f"vLLM does not score a plain sentence: {found}", hint="look at its log in the cache folder")
    refuse_garbage(found.logprobs, tokenizer.vocab_size, "vLLM", asked)


def _check_options(options: Mapping[str, str]) -> None:
    for name in _NUMBERS:
        if value := options.get(name, ""):
            refuse_no_number(name, value, most=_MOST, default=_OPTIONS[name])
