"""The llama.cpp engine: stock binaries, what they can do, and sessions whose cache is the one asked for."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from refract.backends._models import Models
from refract.backends._options import refuse_no_number, refuse_other_word, refuse_unknown
from refract.backends._source import ModelSource
from refract.backends._tokenizer import HFTokenizer, plain_token
from refract.backends.llamacpp.find import Binaries, clean_environment, find_binaries
from refract.backends.llamacpp.forcing import PROMPT_PROBS, Asker
from refract.backends.llamacpp.perplexity import Perplexity
from refract.backends.llamacpp.server import serving
from refract.backends.llamacpp.server_log import (
    AskedContext,
    check_context,
    effective_kv,
    read_cache_log,
    unrotated,
)
from refract.backends.llamacpp.session import LlamaCppSession
from refract.engine import PLACES, Blobs, Capability, Check, Identity, LoadSpec, Session
from refract.errors import ConfigMismatchError, KVUnsupportedError, UsageError
from refract.formats import unsupported
from refract.kv import KVConfig
from refract.work import EffectiveKV

_OPTIONS: Mapping[str, str] = {
    "llama_bin": "",
    "extra_flags": "",
    "flash_attn": "on",
    "ubatch": "512",
    "parallel": "1",
    "threads": "",  # all cores; llama.cpp's bits do not depend on it
    "servers": "",  # on processors alone two, of half the threads each
    "top_k": "1000",  # tokens listed for a divergence in decode protocol
    "timeout_s": "3600",  # for one answer of a server
}
_FREE = frozenset({"threads", "servers", "timeout_s"})  # options that change no answer
_NUMBERS = ("ubatch", "parallel", "threads", "servers", "top_k", "timeout_s")
_MOST = 1 << 20
_CONTROL_UBATCH = ("512", "64")
_SPARE_TOKENS = 16
_LOG_LEVEL = "4"  # at which what was allocated is said
_BLOCK = 32  # values in a block of every quantised type
_FLASH_FLAGS = frozenset({"-fa", "--flash-attn"})
_UBATCH_FLAGS = frozenset({"-ub", "--ubatch-size", "-b", "--batch-size"})
_PARALLEL_FLAGS = frozenset({"-np", "--parallel"})
_EXTRA_VARIABLE = "REFRACT_LLAMA_EXTRA_FLAGS"


class LlamaCppEngine:
    """Runs GGUF models in llama.cpp's own programs."""

    name = "llamacpp"
    control_by_default = True  # on quantised weights another attention kernel moves the reference as far as q8_0 does

    def __init__(self, options: Mapping[str, str] | None = None, cache_dir: Path | None = None) -> None:
        """Raises: UsageError for an option this engine does not have or a value it cannot take."""
        self._options = dict(_OPTIONS) | dict(options or {})
        self._cache_dir = cache_dir
        self._models = Models("llama.cpp", cache_dir, form="gguf")
        _check_options(self._options)

    @cached_property
    def binaries(self) -> Binaries:
        """The binaries that run. Raises: SetupError."""
        return find_binaries(self._options["llama_bin"] or None, self._cache_dir)

    def capabilities(self, kv: KVConfig) -> frozenset[Capability]:
        """Everything, with the patches of llama-cpp-patches.

        A stock server lists no tokens of its prompt: no positions behind a long cache in one prefill. Without
        llama-perplexity there is no exact KL over windows.
        """
        have = {Capability.KL_DEEP: self._lists_prompts, Capability.KL_PREFILL: self.binaries.perplexity is not None}
        return frozenset(capability for capability in Capability if have.get(capability, True))

    @property
    def _lists_prompts(self) -> bool:
        return self.binaries.knows(PROMPT_PROBS)

    def check(self, model: str) -> list[Check]:
        """The binaries, their build and devices, and the model's files."""
        binaries = self.binaries
        lacks = binaries.perplexity is None
        message = "none: KL is a lower bound from listed tokens" if lacks else "llama-perplexity"
        source = self._models.source(model)
        return [
            Check(name="llama-server", status="ok", message=binaries.build),
            Check(
                name="perplexity tool",
                status="warn" if lacks else "ok",
                message=message,
                fix="refract engines build-llamacpp" if lacks else None,
            ),
            Check(name="devices", status="ok", message="; ".join(binaries.devices) or "processors only"),
            Check(name="kv types", status="ok", message=", ".join(binaries.types)),
            Check(name="model", status="ok", message=f"{source.name}: {source.architecture}, {source.weights}"),
        ]

    def check_kv(self, model: str, kv: KVConfig) -> None:
        """Raises: KVUnsupportedError for what this build, the head dimension or flash attention does not allow."""
        source = self._models.source(model)
        if reasons := unsupported(kv, self.name):
            raise KVUnsupportedError(f"{kv}: {reasons[0]}", hint="see: refract formats --backend llamacpp")
        _check_rotation(kv)
        for side, asked in (("K", kv.k), ("V", kv.v)):
            if asked.name not in self.binaries.types:
                raise KVUnsupportedError(
                    f"{asked} is no KV type of this llama.cpp (build {self.binaries.build})",
                    hint=f"it has {', '.join(self.binaries.types)}; turbo types are in the turboquant fork",
                )
            if asked.compressed and source.head_dim % _BLOCK:
                raise KVUnsupportedError(
                    f"{side} as {asked} needs a head dimension that is a multiple of {_BLOCK}, {source.name} has"
                    f" {source.head_dim}",
                    hint="leave this side at f16",
                )
        if kv.v.compressed and self._options["flash_attn"] == "off":
            raise KVUnsupportedError(f"{kv.v} as V needs flash attention, which is off", hint="leave flash_attn on")

    def tokenizer(self, model: str) -> HFTokenizer:
        """The GGUF file's tokenizer, which gives llama.cpp's own token ids."""
        return self._models.tokenizer(model)

    def context_length(self, model: str) -> int:
        """The longest sequence the model was trained for."""
        return self._models.source(model).context_length

    def identify(self, spec: LoadSpec) -> Identity:
        """The build, the weights, and every option but where the binaries are and how many threads run them."""
        options = self._effective(spec)
        kept = {name: value for name, value in options.items() if name not in PLACES | _FREE}
        return Identity(
            engine=self.name,
            build=self.binaries.build,
            model=self._models.fingerprint(spec.model),
            kv=str(spec.kv),
            max_tokens=spec.max_tokens,
            options={**kept, "devices": "; ".join(self.binaries.devices)},
        )

    def control_options(self, options: Mapping[str, str], kv: KVConfig) -> Mapping[str, str] | None:
        """Attention without its flash kernel, or where V is compressed and needs it, another ubatch."""
        own = self._options | dict(options)
        if kv.v.compressed or not kv.is_reference_like:
            usual, other = _CONTROL_UBATCH
            return {"ubatch": usual if own["ubatch"] == other else other}
        return {"flash_attn": "off" if own["flash_attn"] != "off" else "on"}

    def describe(self, model: str) -> Mapping[str, str | int]:
        """Architecture, layers, head dimension, how the weights are stored, and what they run on."""
        return self._models.describe(model, device="; ".join(self.binaries.devices) or "processors")

    def load(self, spec: LoadSpec, blobs: Blobs) -> AbstractContextManager[Session]:
        """A session under `spec.kv`.

        Raises: ModelError, KVUnsupportedError, ConfigMismatchError, SetupError, EngineError.
        """
        return self._session(spec, blobs)

    @contextmanager
    def _session(self, spec: LoadSpec, blobs: Blobs) -> Iterator[Session]:
        self.check_kv(spec.model, spec.kv)
        source, options, tokenizer = self._models.source(spec.model), self._effective(spec), self.tokenizer(spec.model)
        common, env = _common_flags(spec.kv, options), _environment(spec.kv)
        count, threads = _division(options, gpu=bool(self.binaries.devices))
        flags = [*common, *self._server_flags(options, spec.max_tokens), "-t", str(threads), *_extra(options)]
        with ExitStack() as stack:
            servers = [
                stack.enter_context(
                    serving(
                        self.binaries,
                        source.path,
                        flags,
                        env,
                        timeout_s=float(options["timeout_s"]),
                        log=self._log_file(number),
                    )
                )
                for number in range(count)
            ]
            found = [self._effective_kv(server.log, spec, options) for server in servers]
            if short := [kv for kv in found if kv != found[0]]:
                raise ConfigMismatchError(f"two servers of one configuration differ: {found[0]} and {short[0]}")
            yield LlamaCppSession(
                servers=servers,
                asker=Asker(vocab_size=tokenizer.vocab_size, eos_ids=tokenizer.eos_ids, plain=plain_token(tokenizer)),
                perplexity=self._perplexity(spec.kv, source, tokenizer, blobs, common, options, env),
                blobs=blobs,
                effective_kv=found[0],
                max_tokens=spec.max_tokens,
                count=int(options["top_k"]),
                lists_prompts=self._lists_prompts,
                parallel=int(options["parallel"]),
            )

    def _effective_kv(self, log: str, spec: LoadSpec, options: Mapping[str, str]) -> EffectiveKV:
        """What a server's log says it allocated, held against all that was asked for."""
        found = read_cache_log(log)
        check_context(found, asked_context(options, _extra(options)), tokens=spec.max_tokens)
        return effective_kv(spec.kv, found, notes=_notes(options))

    def _log_file(self, number: int) -> Path | None:
        """Where the log of a session's server is kept when it ends, over the one of the session before."""
        return None if self._cache_dir is None else self._cache_dir / "logs" / f"llama-server-{number + 1}.log"

    def _server_flags(self, options: Mapping[str, str], max_tokens: int) -> list[str]:
        parallel = int(options["parallel"])
        flags = ["-np", str(parallel), "-c", str(parallel * (max_tokens + _SPARE_TOKENS)), "-lv", _LOG_LEVEL]
        for flag in (("--no-webui",), ("--cache-ram", "0"), ("--no-warmup",)):
            flags += flag if self.binaries.knows(flag[0]) or self.binaries.knows(flag[0].replace("no-", "")) else ()
        if self._lists_prompts:  # it keeps the logits of a whole batch, which is then no larger than need be
            flags += [PROMPT_PROBS, "-b", options["ubatch"]]
        return flags

    def _perplexity(
        self,
        kv: KVConfig,
        source: ModelSource,
        tokenizer: HFTokenizer,
        blobs: Blobs,
        common: list[str],
        options: Mapping[str, str],
        env: Mapping[str, str],
    ) -> Perplexity | None:
        if self.binaries.perplexity is None:
            return None
        threads = int(options["threads"] or os.cpu_count() or 1)

        def check(log: str) -> None:
            found = read_cache_log(log)
            effective_kv(kv, found)
            asked = asked_context(options, _extra(options))
            check_context(found, replace(asked, sequences=None), tokens=0)  # it takes as many at once as fit a batch

        return Perplexity(
            binary=self.binaries.perplexity,
            model=source.path,
            tokenizer=tokenizer,
            blobs=blobs,
            flags=(*common, "-t", str(threads), "-lv", _LOG_LEVEL, *_extra(options)),
            env=env,
            check=check,
        )

    def _effective(self, spec: LoadSpec) -> dict[str, str]:
        """Every option with its value: the spec's own over those the engine was made with."""
        options = self._options | dict(spec.options)
        _check_options(options)
        return options | {"extra_flags": shlex.join(_extra(options))}


def _check_rotation(kv: KVConfig) -> None:
    sides = {kv.get("rot_k"), kv.get("rot_v")}
    if sides == {"none"} or sides == {"auto"}:
        return
    raise KVUnsupportedError(
        f"{kv}: llama.cpp rotates both sides in its own way or neither", hint="leave rot out, or use rot=none"
    )


def _environment(kv: KVConfig) -> dict[str, str]:
    rotation = {"LLAMA_ATTN_ROT_DISABLE": "1"} if unrotated(kv) else {}
    return clean_environment(os.environ) | rotation


def _common_flags(kv: KVConfig, options: Mapping[str, str]) -> list[str]:
    """What the server and llama-perplexity are both told."""
    types = ["-ctk", kv.k.name, "-ctv", kv.v.name]
    return [*types, "-fa", options["flash_attn"], "-ub", options["ubatch"], "-fit", "off"]


def asked_context(options: Mapping[str, str], extra: Sequence[str]) -> AskedContext:
    """What the log has to confirm; what the user's own flags set is theirs."""
    flash = None if options["flash_attn"] == "auto" or _FLASH_FLAGS & set(extra) else options["flash_attn"] == "on"
    return AskedContext(
        flash_attention=flash,
        ubatch=None if _UBATCH_FLAGS & set(extra) else int(options["ubatch"]),
        sequences=None if _PARALLEL_FLAGS & set(extra) else int(options["parallel"]),
    )


def _division(options: Mapping[str, str], *, gpu: bool) -> tuple[int, int]:
    """How many servers, and threads of each: on processors two servers of half the threads do twice as much."""
    threads = int(options["threads"] or os.cpu_count() or 1)
    servers = int(options["servers"] or (1 if gpu or threads < 2 or int(options["parallel"]) > 1 else 2))
    return servers, max(1, threads // servers)


def _notes(options: Mapping[str, str]) -> tuple[str, ...]:
    notes = []
    if int(options["parallel"]) > 1:
        notes.append(f"{options['parallel']} sequences are decoded together: answers depend on their neighbours")
    if extra := shlex.join(_extra(options)):
        notes.append(f"extra flags: {extra}")
    return tuple(notes)


def _extra(options: Mapping[str, str]) -> list[str]:
    """The user's own flags. Raises: UsageError when they cannot be split into words."""
    text = options["extra_flags"] or os.environ.get(_EXTRA_VARIABLE, "")
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"the extra flags {text!r} cannot be read: {error}", hint="close every quote") from None


def _check_options(options: Mapping[str, str]) -> None:
    refuse_unknown("llamacpp", options, list(_OPTIONS))
    for name in _NUMBERS:
        if value := options.get(name, ""):
            refuse_no_number(name, value, most=_MOST, default=_OPTIONS[name])
    refuse_other_word("flash_attn", options.get("flash_attn", "on"), ("on", "off", "auto"))
