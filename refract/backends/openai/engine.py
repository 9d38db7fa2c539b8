"""The OpenAI engine: servers that somebody else started, asked through the API that most of them have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from refract.backends._asking import Asker, ListedSession
from refract.backends._http import Client
from refract.backends._sanity import refuse_garbage, sanity_window
from refract.backends._server_engine import ServerEngine
from refract.backends._servers import Role, absent, one_server, recall, remember, shown
from refract.backends._tokenizer import HFTokenizer, plain_token
from refract.backends.openai.asker import CompletionsAsker
from refract.backends.openai.offers import Offer, from_facts, look
from refract.backends.openai.sameness import same_server
from refract.backends.openai.stated import STATED, stated_kv
from refract.backends.openai.text_asker import TextAsker
from refract.backends.openai.words import notes, short_name, what_it_lacks
from refract.engine import Blobs, Capability, Check, Identity, LoadSpec, Session
from refract.errors import ConfigMismatchError, EngineError, IncompleteError, UsageError
from refract.kv import KVConfig


class OpenAIEngine(ServerEngine):
    """Asks running servers through /v1/completions. Their KV types cannot be read: what is stated is reported so."""

    name = "openai"
    asked = "openai"
    no_address = (
        "the openai backend asks running servers, and no address is given",
        "give --reference-url and --candidate-url",
    )

    def __init__(self, options: Mapping[str, str] | None = None, cache_dir: Path | None = None) -> None:
        """Raises: UsageError for an option this engine does not have, a value it cannot take, or no server."""
        super().__init__(options, cache_dir)
        self._offers: dict[str, Offer] = {}
        self._gone: dict[str, IncompleteError] = {}  # asked in vain once, and waited for

    def capabilities(self, kv: KVConfig) -> frozenset[Capability]:
        """Generation; with token ids and raw lists of probable tokens also forcing and KL, token by token."""
        offer = self._known_offer(self._role(kv))
        found = {Capability.GENERATE}
        if offer.listed:
            found |= {Capability.TOP_K, Capability.KEEP_BASE}
        if offer.raw:
            found |= {Capability.SCORE_TOKENS, Capability.KL_DECODE}
        return frozenset(found)

    def check(self, model: str) -> list[Check]:
        """Each server, what it offers, and the model's files."""
        source = self._models.source(model)
        checks = [Check(name="model", status="ok", message=f"{source.name}: {source.architecture}, {source.weights}")]
        for url in self._places.every:
            try:
                offer = self._offer(url, model)
            except (EngineError, IncompleteError) as error:
                checks.append(Check(name=shown(url), status="fail", message=error.message, fix=error.hint))
                continue
            lacks = what_it_lacks(offer)
            message = f"{offer.title}, model {short_name(offer.model)}" + (f": {'; '.join(lacks)}" if lacks else "")
            checks.append(Check(name=shown(url), status="warn" if lacks else "ok", message=message))
        return [*checks, Check(name="kv types", status="warn", message=STATED)]

    def check_kv(self, model: str, kv: KVConfig) -> None:
        """Raises: UsageError for one server as both sides, or several candidates; KVUnsupportedError for no server."""
        self._models.source(model)
        if self._role(kv) == "reference":
            return
        if ";" in self._options["candidate_kv"]:
            raise UsageError(
                "the openai backend measures one candidate at a time: a server's KV types cannot be read",
                hint="name one --candidate; its server is the one at --candidate-url",
            )
        if self._places.shared:
            raise one_server(f"--url is {shown(self._places.reference)} for both, and its KV types cannot be read")
        self._tell_apart(model)

    def context_length(self, model: str) -> int:
        """The longest sequence that the model was trained for and the servers take."""
        offers = [self._known_offer(role, model) for role in ("reference", "candidate") if self._places.of(role)]
        return min(self._models.source(model).context_length, *(offer.context or 1 << 30 for offer in offers))

    def identify(self, spec: LoadSpec) -> Identity:
        """The kind and build of the server, the model's files, and every option that can change an answer."""
        offer = self._known_offer(self._role(spec.kv), spec.model)
        return Identity(
            engine=self.name,
            build=offer.title,
            model=self._models.fingerprint(spec.model),
            kv=str(spec.kv),
            max_tokens=0,
            options={**self._kept(spec), "ids": str(offer.ids), "listed": str(offer.listed), "raw": str(offer.raw)},
        )

    def open_session(self, spec: LoadSpec, blobs: Blobs) -> Session:
        """Raises: IncompleteError where there is no server; ConfigMismatchError for too short a context."""
        options, role = self._effective(spec), self._role(spec.kv)
        url = self._places.of(role)
        if not url:
            raise absent("OpenAI-compatible", role, f"a server that keeps its KV cache as {spec.kv}")
        offer, source = self._offer(url, spec.model), self._models.source(spec.model)
        tokenizer = self.tokenizer(spec.model)
        if offer.context and offer.context < spec.max_tokens:
            raise ConfigMismatchError(
                f"the server at {shown(url)} takes sequences of {offer.context} tokens, this run needs"
                f" {spec.max_tokens}",
                hint="start it with a longer context",
            )
        asker = _asker(self._client(url, offer.dialect.title), offer, tokenizer)
        if offer.raw:
            text = sanity_window(tokenizer)
            found = asker.force(text.tokens[: text.start], text.tokens[text.start :], 1)
            refuse_garbage(found.logprobs, tokenizer.vocab_size, offer.title, str(spec.kv))
        return ListedSession(
            asker=asker,
            blobs=blobs,
            effective_kv=stated_kv(source, spec.kv, notes(offer, parallel=int(options["parallel"]))),
            vocab_size=tokenizer.vocab_size,
            max_tokens=spec.max_tokens,
            count=offer.listed or 1,
            lanes=int(options["parallel"]),
        )

    def refuse_one_server(self, model: str) -> None:
        """Nothing where one of the two is not there, and so not the other.

        Raises: UsageError when both addresses reach one process, ConfigMismatchError for servers of two builds.
        """
        first, second = self._places.reference, self._places.candidate
        try:
            offers = [self._offer(url, model) for url in (first, second)]
        except IncompleteError:
            return
        clients = self._client(first, "the reference's server"), self._client(second, "the candidate's server")
        if same_server(*clients, offers[0]):
            raise one_server(f"{shown(first)} and {shown(second)} are one process")
        if offers[0].title != offers[1].title:
            raise ConfigMismatchError(
                f"the reference's server is {offers[0].title}, the candidate's {offers[1].title}:"
                " their difference would be measured too",
                hint="start both from one build",
            )

    def _offer(self, url: str, model: str) -> Offer:
        """What the server at `url` offers, asked once. Raises: IncompleteError, EngineError."""
        if url not in self._offers:
            wanted = int(self._options["top_k"])
            client = self._client(url, "the server")
            offer = look(client, self.tokenizer(model), model=self._options["served_model"], wanted=wanted)
            self._offers[url] = offer
            remember(self._cache_dir, self._memory(model), offer.facts())
        return self._offers[url]

    def _known_offer(self, role: Role, model: str = "") -> Offer:
        """What the server of a side offers; where it is not there, the other side's, or what was remembered.

        One build answers both sides of a run. Raises: IncompleteError, EngineError.
        """
        model = model or next(iter(self._models.known), "")
        for url in dict.fromkeys(filter(None, (self._places.of(role), *self._places.every))):
            if url in self._gone:
                continue
            try:
                return self._offer(url, model)
            except IncompleteError as error:
                self._gone[url] = error
        known = from_facts(recall(self._cache_dir, self._memory(model)) or {})
        if known is None:
            raise next(iter(self._gone.values()))
        return known


def _asker(client: Client, offer: Offer, tokenizer: HFTokenizer) -> Asker:
    if not offer.ids:
        return TextAsker(
            client=client, dialect=offer.dialect, model=offer.model, tokenizer=tokenizer, begin=tokenizer.prefix
        )
    return CompletionsAsker(
        client=client,
        dialect=offer.dialect,
        model=offer.model,
        vocab_size=tokenizer.vocab_size,
        eos_ids=tokenizer.eos_ids,
        plain=plain_token(tokenizer),
    )
