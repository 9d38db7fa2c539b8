"""vLLM servers that somebody else started: their KV type is read and checked, their answers compared by lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from refract.backends._asking import ListedSession
from refract.backends._fingerprint import fingerprint
from refract.backends._http import Client
from refract.backends._options import refuse_no_number, refuse_unknown
from refract.backends._sanity import refuse_garbage, sanity_window
from refract.backends._servers import (
    Role,
    absent,
    client_of,
    one_server,
    other_kv,
    read_places,
    recall,
    remember,
    role_of,
    shown,
)
from refract.backends._source import ModelSource, find_model
from refract.backends._tokenizer import HFTokenizer, load_tokenizer
from refract.backends.vllm.http_asker import VLLMAsker
from refract.backends.vllm.http_facts import ServerFacts, read_facts
from refract.backends.vllm.http_kv import check_skipped, effective, same_type
from refract.backends.vllm.kvtypes import effective_type
from refract.engine import PLACES, Blobs, Capability, Check, Identity, LoadSpec, Session
from refract.errors import ConfigMismatchError, EngineError, IncompleteError, UsageError
from refract.kv import KVConfig

_OPTIONS: Mapping[str, str] = {
    "url": "",
    "reference_url": "",
    "candidate_url": "",
    "reference_kv": "",
    "candidate_kv": "",
    "served_model": "",  # the one to ask for, where a server has several
    "parallel": "1",
    "top_k": "1000",  # tokens listed for a divergence, or as many as the server lists (--max-logprobs)
    "timeout_s": "600",  # for one answer
    "patience_s": "30",  # for a server that is not there, or busy
}
_FREE = frozenset({"timeout_s", "patience_s"})  # options that change no answer
_NUMBERS = ("parallel", "top_k", "timeout_s", "patience_s")
_MOST = 1 << 20
_FEW = 100  # tokens listed; a lower bound from fewer may be far below


class HTTPVLLM:
    """Asks running vLLM servers; fulfils `refract.engine.Engine`."""

    name = "vllm"
    control_by_default = False

    def __init__(self, options: Mapping[str, str] | None = None, cache_dir: Path | None = None) -> None:
        """Raises: UsageError for an option a running server cannot be given, a value it cannot take, or no address."""
        self._options = dict(_OPTIONS) | dict(options or {})
        self._cache_dir = cache_dir
        self._models: dict[str, ModelSource] = {}
        self._known: dict[str, dict[str, str]] = {}
        self._checked = False
        _check_options(self._options)
        places = read_places(self._options)
        if places is None:
            raise UsageError("no address of a vLLM server is given", hint="give --url, or leave it to start its own")
        self._places = places

    def capabilities(self, kv: KVConfig) -> frozenset[Capability]:
        """Everything token by token. A prompt's own log-probabilities are not used.

        On GPUs the pass over a prompt may attend to keys that are not compressed yet.
        """
        return frozenset(Capability) - {Capability.KL_PREFILL, Capability.KL_DEEP}

    def check(self, model: str) -> list[Check]:
        """Each server with the KV type it keeps, and the model's files."""
        source = self._source(model)
        checks = [Check(name="model", status="ok", message=f"{source.name}: {source.architecture}, {source.weights}")]
        for url in self._places.every:
            try:
                facts = self._facts(url, model)
            except (EngineError, IncompleteError) as error:
                checks.append(Check(name=shown(url), status="fail", message=error.message, fix=error.hint))
                continue
            few = facts.listed < _FEW
            message = f"vLLM {facts.version}, KV cache {facts.cache_dtype}, lists {facts.listed} probable tokens"
            fix = "start it with --max-logprobs 1000" if few else None
            checks.append(Check(name=shown(url), status="warn" if few else "ok", message=message, fix=fix))
        return checks

    def check_kv(self, model: str, kv: KVConfig) -> None:
        """Raises: KVUnsupportedError for what vLLM does not have or no server is for; UsageError for one server."""
        self._source(model)
        effective_type(kv)
        if self._role(kv) == "candidate" and not self._places.shared and len(self._places.every) > 1:
            if not self._checked:
                self._refuse_one_server(model)
            self._checked = True

    def tokenizer(self, model: str) -> HFTokenizer:
        """The tokenizer of --model; no weights are read."""
        return load_tokenizer(self._source(model).path, self._cache_dir)

    def context_length(self, model: str) -> int:
        """The longest sequence that the model was trained for and the servers take."""
        context = int(self._lasting(model)["context"])
        return min(self._source(model).context_length, context or 1 << 30)

    def identify(self, spec: LoadSpec) -> Identity:
        """The version of the server, the model's files, and every option that can change an answer."""
        known = self._lasting(spec.model)
        options = self._effective(spec)
        kept = {name: value for name, value in options.items() if name not in PLACES | _FREE}
        return Identity(
            engine=self.name,
            build=known["version"],
            model=fingerprint(self._source(spec.model).files, self._cache_dir),
            kv=str(spec.kv),
            max_tokens=0,
            options={**kept, "way": "server", "listed": known["listed"], "forces": known["forces"]},
        )

    def control_options(self, options: Mapping[str, str], kv: KVConfig) -> Mapping[str, str] | None:
        """None: a running server's kernels are its own."""
        return None

    def describe(self, model: str) -> Mapping[str, str | int]:
        """Architecture, layers and head dimension as the local files say them; the weights are the server's."""
        source = self._source(model)
        return {
            "name": source.name,
            "architecture": source.architecture,
            "layers": source.layers,
            "head_dim": source.head_dim,
            "weights": f"{source.weights} here; the server's own were asked",
            "device": "the server's",
        }

    def load(self, spec: LoadSpec, blobs: Blobs) -> AbstractContextManager[Session]:
        """A session with a server that keeps the KV type asked for.

        Raises: IncompleteError where another server has to be started first; ConfigMismatchError; EngineError.
        """
        return self._session(spec, blobs)

    @contextmanager
    def _session(self, spec: LoadSpec, blobs: Blobs) -> Iterator[Session]:
        self.check_kv(spec.model, spec.kv)
        asked, role, options = effective_type(spec.kv), self._role(spec.kv), self._effective(spec)
        start, url = f"vllm serve with --kv-cache-dtype {asked} --max-logprobs 1000", self._places.of(role)
        if not url:
            raise absent("vLLM", role, start)
        facts, source, tokenizer = self._facts(url, spec.model), self._source(spec.model), self.tokenizer(spec.model)
        if not same_type(asked, facts.cache_dtype):
            in_turn = self._places.shared or ";" in self._options["candidate_kv"]
            raise other_kv("vLLM", url, shared=in_turn, asked=asked, found=facts.cache_dtype, start=start)
        check_skipped(spec.kv, source.layers, facts)
        if facts.context and facts.context < spec.max_tokens:
            raise ConfigMismatchError(
                f"the server at {shown(url)} takes sequences of {facts.context} tokens, this run needs"
                f" {spec.max_tokens}",
                hint=f"start it with --max-model-len {spec.max_tokens} or more",
            )
        asker = VLLMAsker(client=self._client(url), tokenizer=tokenizer, model=facts.model, forces=facts.forces)
        text = sanity_window(tokenizer)
        plain = asker.force(text.tokens[: text.start], text.tokens[text.start :], 1)
        refuse_garbage(plain.logprobs, tokenizer.vocab_size, "vLLM", facts.cache_dtype)
        yield ListedSession(
            asker=asker,
            blobs=blobs,
            effective_kv=effective(source, spec.kv, asked, facts, _notes(facts, options)),
            vocab_size=tokenizer.vocab_size,
            max_tokens=spec.max_tokens,
            count=facts.listed,
            lanes=int(options["parallel"]),
        )

    def _client(self, url: str) -> Client:
        timeout_s, patience_s = (float(self._options[name]) for name in ("timeout_s", "patience_s"))
        return client_of(url, "the vLLM server", timeout_s=timeout_s, patience_s=patience_s)

    def _refuse_one_server(self, model: str) -> None:
        """Nothing where one of the two is not there, and so not the other.

        Raises: UsageError when both addresses reach one process, ConfigMismatchError for unlike servers.
        """
        try:
            first, second = (self._facts(url, model) for url in self._places.every)
        except IncompleteError:
            return
        if first.started and (first.started, first.cache_dtype) == (second.started, second.cache_dtype):
            raise one_server(" and ".join(map(shown, self._places.every)) + " are one process")
        for what, own, other in (
            ("its version", first.version, second.version),
            ("the longest list of probable tokens", str(first.listed), str(second.listed)),
            ("whether it has refract's logits processor", str(first.forces), str(second.forces)),
        ):
            if own != other:
                raise ConfigMismatchError(
                    f"the two servers differ in {what}: {own} for the reference, {other} for the candidate",
                    hint="start both alike but for --kv-cache-dtype",
                )

    def _facts(self, url: str, model: str) -> ServerFacts:
        """What the server at `url` says now. Raises: IncompleteError, EngineError."""
        wanted, name = int(self._options["top_k"]), self._options["served_model"]
        facts = read_facts(self._client(url), self.tokenizer(model), model=name, wanted=wanted)
        remember(self._cache_dir, self._memory(model), facts.lasting)
        return facts

    def _lasting(self, model: str) -> dict[str, str]:
        """Version, context and length of lists: of whichever server is there, else as remembered.

        One version answers both sides of a run. Raises: IncompleteError, EngineError.
        """
        if model not in self._known:
            self._known[model] = self._found(model)
        return self._known[model]

    def _found(self, model: str) -> dict[str, str]:
        gone = []
        for url in self._places.every:
            try:
                return self._facts(url, model).lasting
            except IncompleteError as error:
                gone.append(error)
        known = recall(self._cache_dir, self._memory(model))
        if known is None or not known.keys() >= {"version", "context", "listed", "forces"}:
            raise gone[0]
        return known

    def _memory(self, model: str) -> str:
        return f"vllm {fingerprint(self._source(model).files, self._cache_dir)} {self._options['served_model']}"

    def _role(self, kv: KVConfig) -> Role:
        return role_of(kv, self._options)

    def _effective(self, spec: LoadSpec) -> dict[str, str]:
        options = self._options | dict(spec.options)
        _check_options(options)
        return options

    def _source(self, model: str) -> ModelSource:
        if model not in self._models:
            self._models[model] = find_model(model)
        return self._models[model]


def _notes(facts: ServerFacts, options: Mapping[str, str]) -> tuple[str, ...]:
    notes = []
    if facts.listed < int(options["top_k"]):
        notes.append(
            f"it lists {facts.listed} probable tokens: start it with --max-logprobs {options['top_k']} for more"
        )
    if facts.forces:
        notes.append("a text is forced in one request by refract's logits processor")
    else:
        notes.append("a text is forced one token a request: with refract's logits processor it is one request")
    if (parallel := int(options["parallel"])) > 1:
        notes.append(f"{parallel} requests at once: answers may depend on their neighbours")
    return tuple(notes)


def _check_options(options: Mapping[str, str]) -> None:
    refuse_unknown("vllm (a running server)", options, list(_OPTIONS))
    for name in _NUMBERS:
        refuse_no_number(name, options.get(name, _OPTIONS[name]), most=_MOST, default=_OPTIONS[name])
