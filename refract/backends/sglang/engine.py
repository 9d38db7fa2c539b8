"""The SGLang engine: servers that run already, or that are started here, one KV type each."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from refract.backends._http import Client
from refract.backends._models import Models
from refract.backends._sanity import with_room
from refract.backends._servers import Places, read_places, role_of, shown
from refract.backends._source import ModelSource
from refract.backends._tokenizer import HFTokenizer
from refract.backends.sglang.arguments import Installation, find_installation
from refract.backends.sglang.asking import SGLangAsker
from refract.backends.sglang.facts import READS_CACHE_IN_PREFILL, ServerFacts, ask_facts, difference
from refract.backends.sglang.kvtypes import FLAGS, CacheShape, cache_shape, check_supported, effective_kv, serves
from refract.backends.sglang.launch import defaults, environment, serving
from refract.backends.sglang.model import check_same_model
from refract.backends.sglang.options import FREE, ON, OPTIONS, arguments_of, check_options
from refract.backends.sglang.running import Memory, Servers, other_type, there
from refract.backends.sglang.session import SGLangSession, check_sanity, notes
from refract.engine import PLACES, Blobs, Capability, Check, Identity, LoadSpec, Session
from refract.errors import ConfigMismatchError, KVUnsupportedError
from refract.kv import KVConfig

_CONTROL_CHUNKS = ("64", "128")
_STEPS = frozenset({Capability.SCORE_TOKENS, Capability.KL_DECODE, Capability.KEEP_BASE})
_PASSES = frozenset({Capability.KL_PREFILL, Capability.KL_DEEP})


class SGLangEngine:
    """Asks SGLang servers through /generate, by token ids."""

    name = "sglang"
    control_by_default = False

    def __init__(self, options: Mapping[str, str] | None = None, cache_dir: Path | None = None) -> None:
        """Raises: UsageError for an option it cannot take, for no server, and for one server as both sides."""
        self._options = dict(OPTIONS) | dict(options or {})
        self._cache_dir = cache_dir
        self._models = Models("SGLang", cache_dir, form="folder")
        self._reference: ServerFacts | None = None  # whatever candidates are compared with
        places = read_places(self._options)
        check_options(self._options, places)
        self._servers = None if places is None else _servers(places, self._options)

    @cached_property
    def installation(self) -> Installation:
        """The SGLang that starts servers here. Raises: SetupError, MissingPackageError."""
        return find_installation(self._options["python"] or sys.executable, self._cache_dir)

    def capabilities(self, kv: KVConfig) -> frozenset[Capability]:
        """Generation always; prompts in one pass where the attention reads them back from the cache, else in steps."""
        passes, steps = self._reading(kv)
        found = {Capability.GENERATE, Capability.TOP_K}
        return frozenset(found | (_STEPS if steps else set()) | (_PASSES if passes else set()))

    def check(self, model: str) -> list[Check]:
        """The servers, or what starts them, and the model's files."""
        source = self._models.source(model)
        checks = [Check(name="model", status="ok", message=f"{source.name}: {source.architecture}, {source.weights}")]
        if self._servers is None:
            found = self.installation
            return [*checks, Check(name="sglang", status="ok", message=f"{found.version} on {found.device}")]
        for url in self._servers.places.every:
            facts = self._servers.glance(url)
            if facts is None:
                fix = "start it, or check the address"
                checks.append(Check(name=shown(url), status="fail", message="no SGLang server answers", fix=fix))
            else:
                message = f"SGLang {facts.version} on {facts.device}, {facts.attention}, KV {facts.kv_type}"
                checks.append(Check(name=shown(url), status="ok", message=message))
        return checks

    def check_kv(self, model: str, kv: KVConfig) -> None:
        """Raises: KVUnsupportedError, UsageError for arguments SGLang lacks or one server as both sides, SetupError."""
        self._models.source(model)
        check_supported(kv)
        if self._servers is not None:
            role_of(kv, self._options)
            self._servers.refuse_one()
        else:
            found = self.installation
            found.flags(arguments_of(self._options))
            _check_type(kv, found)

    def tokenizer(self, model: str) -> HFTokenizer:
        """The tokenizer of --model; no weights are read."""
        return self._models.tokenizer(model)

    def context_length(self, model: str) -> int:
        """The longest sequence that the model was trained for and the servers take."""
        own = self._models.source(model).context_length
        if self._servers is None:
            limits = [arguments_of(self._options).get("context_length", str(own))]
        else:
            answers = [self._servers.glance(url) for url in self._servers.places.every]
            limits = [facts.arguments.get("context_length", str(own)) for facts in answers if facts]
        return min([own, *map(int, limits)])

    def identify(self, spec: LoadSpec) -> Identity:
        """The version, the model's files, and every argument that can change an answer."""
        options = self._effective(spec)
        kept = {name: value for name, value in options.items() if name not in PLACES | FREE}
        if self._servers is None:
            found = self.installation
            version, more = found.version, {"device": found.device, "threads": os.environ.get("OMP_NUM_THREADS", "")}
        else:
            facts = self._known(spec.model, spec.kv)
            version, more = (facts.version, facts.arguments) if facts else ("not seen yet", {})
        return Identity(
            engine=self.name,
            build=version,
            model=self._models.fingerprint(spec.model),
            kv=str(spec.kv),
            max_tokens=0,
            options={**kept, **{f"server.{name}": value for name, value in more.items()}},
        )

    def control_options(self, options: Mapping[str, str], kv: KVConfig) -> Mapping[str, str] | None:
        """Prompts read in other chunks, where servers are started here; a running server's kernels are its own."""
        if self._servers is not None:
            return None
        own = (self._options | dict(options)).get("chunked_prefill_size")
        usual, other = _CONTROL_CHUNKS
        return {"chunked_prefill_size": other if own == usual else usual}

    def describe(self, model: str) -> Mapping[str, str | int]:
        """Architecture, layers, head dimension, how the weights are stored, and what they run on."""
        if self._servers is None:
            device = self.installation.device
        else:
            facts = self._servers.any_facts("reference")
            device = facts.device if facts else "the server's"
        return self._models.describe(model, device=device)

    def load(self, spec: LoadSpec, blobs: Blobs) -> AbstractContextManager[Session]:
        """A session under `spec.kv`.

        Raises: IncompleteError where another server is to be started, ConfigMismatchError, ModelError, EngineError.
        """
        return self._session(spec, blobs)

    @contextmanager
    def _session(self, spec: LoadSpec, blobs: Blobs) -> Iterator[Session]:
        self.check_kv(spec.model, spec.kv)
        source, tokenizer, options = self._models.source(spec.model), self.tokenizer(spec.model), self._effective(spec)
        spec = with_room(spec, tokenizer)
        shape, lanes = cache_shape(source.path), int(options["parallel"])
        with self._client(spec, source, options) as client:
            facts = ask_facts(client) if self._servers is None else there(client, spec.kv)
            self._accept(spec, facts, shape, client.url)
            unsure = check_same_model(client, facts, source, tokenizer, self._cache_dir)
            effective = effective_kv(spec.kv, facts, shape)
            asker = SGLangAsker(client=client, eos_ids=tokenizer.eos_ids, vocab_size=tokenizer.vocab_size)
            check_sanity(asker, tokenizer, facts, spec.kv)
            yield SGLangSession(
                asker=asker,
                blobs=blobs,
                effective_kv=replace(effective, notes=(*effective.notes, *unsure, *notes(facts, lanes))),
                vocab_size=tokenizer.vocab_size,
                max_tokens=spec.max_tokens,
                count=int(options["top_k"]),
                lanes=lanes,
            )

    @contextmanager
    def _client(self, spec: LoadSpec, source: ModelSource, options: Mapping[str, str]) -> Iterator[Client]:
        """A client of the server for `spec`, which runs already or is started here."""
        if self._servers is not None:
            yield self._servers.client(role_of(spec.kv, self._options), spec.kv)
            return
        found, asked = self.installation, arguments_of(options)
        taken = found.names(asked)
        device = asked.get("device", found.device)
        ours = defaults(found, device, max_tokens=spec.max_tokens, lanes=int(options["parallel"]))
        words = found.flags({name: value for name, value in ours.items() if name not in taken} | asked)
        log = None if self._cache_dir is None else self._cache_dir / "logs" / f"sglang-{FLAGS[spec.kv.k.name]}.log"
        with serving(
            found,
            source.path,
            ["--kv-cache-dtype", FLAGS[spec.kv.k.name], *words],
            env=environment(device),
            timeout_s=float(options["timeout_s"]),
            ready_s=float(options["ready_s"]),
            log=log,
        ) as client:
            yield client

    def _accept(self, spec: LoadSpec, facts: ServerFacts, shape: CacheShape, url: str) -> None:
        """Refuses a server that is not the one asked for, and remembers one that is."""
        if not serves(spec.kv, facts, shape):
            shared = self._servers is not None and self._servers.places.shared
            raise other_type(spec.kv, facts, shape, url=url, shared=shared, options=self._options)
        limit = int(facts.arguments.get("context_length", spec.max_tokens))
        if limit < spec.max_tokens:
            raise ConfigMismatchError(
                f"the server takes sequences of {limit} tokens, this run needs {spec.max_tokens}",
                hint="start it with a longer --context-length",
            )
        if self._reading(spec.kv)[0] and not facts.prefill_reads_cache:
            raise ConfigMismatchError(
                f"the server's attention is {facts.attention}, whose prompts do not read the cache they are scored by",
                hint="start it with --attention-backend torch_native, or name the one it has with --engine-arg",
            )
        if self._effective(spec) == self._options:  # a control is started otherwise on purpose
            self._compare(spec.kv, facts)
        if self._servers is not None:
            self._memory(spec.model, spec.kv).keep(facts)
            Memory(self._cache_dir, url).keep(facts)

    def _known(self, model: str, kv: KVConfig) -> ServerFacts | None:
        """What the running server of this configuration says, or said when it last ran."""
        assert self._servers is not None
        role, shape = role_of(kv, self._options), cache_shape(self._models.source(model).path)
        facts = self._servers.glance(self._servers.places.of(role))
        if facts is not None and serves(kv, facts, shape):
            self._compare(kv, facts)
            return facts
        facts = self._memory(model, kv).facts()
        if role == "reference":
            self._reference = facts
        return facts

    def _compare(self, kv: KVConfig, facts: ServerFacts) -> None:
        """Refuses a candidate's server that differs from the reference's in more than its cache."""
        if role_of(kv, self._options) == "reference":
            self._reference = facts
        elif self._reference is not None and (found := difference(self._reference, facts)):
            raise ConfigMismatchError(
                f"the servers of the reference and of {kv} differ in more than their KV type: {found}",
                hint="start both with the same arguments but --kv-cache-dtype",
            )

    def _memory(self, model: str, kv: KVConfig) -> Memory:
        return Memory(self._cache_dir, f"{self._models.fingerprint(model)} {kv}")

    def _reading(self, kv: KVConfig) -> tuple[bool, bool]:
        """Whether prompts can be scored in one pass, which has to read the cache back, and in steps."""
        if self._servers is None:
            asked = arguments_of(self._options)
            device = asked.get("device", self.installation.device)
            own = defaults(self.installation, device, max_tokens=0, lanes=1) | asked
            passes = own.get("attention_backend") in READS_CACHE_IN_PREFILL
            apart = own.get("disable_radix_cache", "").lower() not in ON and own.get("page_size", "1") == "1"
            return passes, apart
        url = self._servers.places.of(role_of(kv, self._options))
        facts = self._servers.any_facts(role_of(kv, self._options)) or Memory(self._cache_dir, url).facts()
        return (facts.prefill_reads_cache, facts.steps) if facts else (False, True)

    def _effective(self, spec: LoadSpec) -> dict[str, str]:
        """Every option with its value: the spec's own over those the engine was made with."""
        options = self._options | dict(spec.options)
        check_options(options, self._servers.places if self._servers else None)
        return options


def _servers(places: Places, options: Mapping[str, str]) -> Servers:
    return Servers(places=places, timeout_s=float(options["timeout_s"]), patience_s=float(options["patience_s"]))


def _check_type(kv: KVConfig, installation: Installation) -> None:
    """Raises: KVUnsupportedError for a type that this version or device does not have."""
    flag = FLAGS[kv.k.name]
    choices = installation.arguments.get("kv_cache_dtype", {}).get("choices")
    if choices and flag not in choices:
        raise KVUnsupportedError(f"{kv}: SGLang {installation.version} has no KV type {flag}", hint="use a newer one")
