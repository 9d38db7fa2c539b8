"""vLLM servers that somebody else started: their KV type is read and checked, their answers compared by lists."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from refract.backends._asking import ListedSession
from refract.backends._sanity import refuse_garbage, sanity_window
from refract.backends._server_engine import ServerEngine
from refract.backends._servers import absent, one_server, other_kv, recall, remember, shown
from refract.backends.vllm.http_asker import VLLMAsker
from refract.backends.vllm.http_facts import ServerFacts, read_facts
from refract.backends.vllm.http_kv import check_skipped, effective, same_type
from refract.backends.vllm.kvtypes import effective_type
from refract.engine import Blobs, Capability, Check, Identity, LoadSpec, Session
from refract.errors import ConfigMismatchError, EngineError, IncompleteError
from refract.kv import KVConfig

_FEW = 100  # tokens listed; a lower bound from fewer may be far below


class HTTPVLLM(ServerEngine):
    """Asks running vLLM servers; fulfils `refract.engine.Engine`."""

    name = "vllm"
    asked = "vllm (a running server)"
    no_address = ("no address of a vLLM server is given", "give --url, or leave it to start its own")

    def __init__(self, options: Mapping[str, str] | None = None, cache_dir: Path | None = None) -> None:
        """Raises: UsageError for an option a running server cannot be given, a value it cannot take, or no address."""
        super().__init__(options, cache_dir)
        self._known: dict[str, dict[str, str]] = {}

    def capabilities(self, kv: KVConfig) -> frozenset[Capability]:
        """Everything token by token. A prompt's own log-probabilities are not used.

        On GPUs the pass over a prompt may attend to keys that are not compressed yet.
        """
        return frozenset(Capability) - {Capability.KL_PREFILL, Capability.KL_DEEP}

    def check(self, model: str) -> list[Check]:
        """Each server with the KV type it keeps, and the model's files."""
        source = self._models.source(model)
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
        self._models.source(model)
        effective_type(kv)
        if self._role(kv) == "candidate" and not self._places.shared:
            self._tell_apart(model)

    def context_length(self, model: str) -> int:
        """The longest sequence that the model was trained for and the servers take."""
        context = int(self._lasting(model)["context"])
        return min(self._models.source(model).context_length, context or 1 << 30)

    def identify(self, spec: LoadSpec) -> Identity:
        """The version of the server, the model's files, and every option that can change an answer."""
        known = self._lasting(spec.model)
        return Identity(
            engine=self.name,
            build=known["version"],
            model=self._models.fingerprint(spec.model),
            kv=str(spec.kv),
            max_tokens=0,
            options={**self._kept(spec), "way": "server", "listed": known["listed"], "forces": known["forces"]},
        )

    def open_session(self, spec: LoadSpec, blobs: Blobs) -> Session:
        """Raises: IncompleteError where another server has to be started first; ConfigMismatchError; EngineError."""
        asked, role, options = effective_type(spec.kv), self._role(spec.kv), self._effective(spec)
        start, url = f"vllm serve with --kv-cache-dtype {asked} --max-logprobs 1000", self._places.of(role)
        if not url:
            raise absent("vLLM", role, start)
        facts, source = self._facts(url, spec.model), self._models.source(spec.model)
        tokenizer = self.tokenizer(spec.model)
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
        asker = VLLMAsker(
            client=self._client(url, "the vLLM server"), tokenizer=tokenizer, model=facts.model, forces=facts.forces
        )
        text = sanity_window(tokenizer)
        plain = asker.force(text.tokens[: text.start], text.tokens[text.start :], 1)
        refuse_garbage(plain.logprobs, tokenizer.vocab_size, "vLLM", facts.cache_dtype)
        return ListedSession(
            asker=asker,
            blobs=blobs,
            effective_kv=effective(source, spec.kv, asked, facts, _notes(facts, options)),
            vocab_size=tokenizer.vocab_size,
            max_tokens=spec.max_tokens,
            count=facts.listed,
            lanes=int(options["parallel"]),
        )

    def refuse_one_server(self, model: str) -> None:
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
        facts = read_facts(self._client(url, "the vLLM server"), self.tokenizer(model), model=name, wanted=wanted)
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
