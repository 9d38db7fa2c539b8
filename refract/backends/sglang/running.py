"""Servers that run already: what they say of themselves, now or before, and which of them is to be asked."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from refract.backends._http import Client
from refract.backends._servers import Places, Role, absent, client_of, one_server, other_kv, recall, remember, shown
from refract.backends.sglang.facts import ServerFacts, ask_facts, from_text
from refract.backends.sglang.kvtypes import FLAGS, CacheShape, serves, stored_type
from refract.errors import EngineError, IncompleteError, RefractError
from refract.kv import KVConfig, parse_kv

_GLANCE_S = 10.0  # for an answer that costs the server nothing


@dataclass(frozen=True, slots=True)
class Memory:
    """What was said under one name before, by servers that may be gone."""

    cache_dir: Path | None
    name: str

    def keep(self, facts: ServerFacts) -> None:
        """Keeps the facts over those before."""
        remember(self.cache_dir, f"sglang {self.name}", facts.as_text())

    def facts(self) -> ServerFacts | None:
        """The facts that were kept last; None where there are none that can be read."""
        return from_text(recall(self.cache_dir, f"sglang {self.name}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """The running servers of a run. What they say is asked once for planning, and again when they are to answer."""

    places: Places
    timeout_s: float
    patience_s: float
    _seen: dict[str, ServerFacts | None] = field(default_factory=dict)

    def client(self, role: Role, kv: KVConfig) -> Client:
        """A client of this side's server. Raises: IncompleteError when there is none."""
        url = self.places.of(role)
        if not url:
            raise absent("SGLang", role, started(kv))
        return self._client(url, timeout_s=self.timeout_s, patience_s=self.patience_s)

    def glance(self, url: str) -> ServerFacts | None:
        """What the server at an address says of itself; None where it is not there or no SGLang server."""
        if url and url not in self._seen:
            self._seen[url] = None
            with suppress(EngineError, IncompleteError):
                self._seen[url] = ask_facts(self._client(url, timeout_s=_GLANCE_S, patience_s=0.0))
        return self._seen.get(url)

    def any_facts(self, role: Role) -> ServerFacts | None:
        """What the server of this side says, or else that of the other."""
        found = (self.glance(url) for url in (self.places.of(role), *self.places.every))
        return next((facts for facts in found if facts is not None), None)

    def refuse_one(self) -> None:
        """Raises: UsageError where both addresses lead to one server."""
        first, second = self.places.reference, self.places.candidate
        if first == second or not (first and second):
            return
        one, other = self.glance(first), self.glance(second)
        if one is not None and other is not None and one.instance == other.instance:
            raise one_server(f"{shown(first)} and {shown(second)} lead to the same one")

    def _client(self, url: str, *, timeout_s: float, patience_s: float) -> Client:
        return client_of(url, "the SGLang server", timeout_s=timeout_s, patience_s=patience_s)


def started(kv: KVConfig) -> str:
    """How a server for `kv` is started, as part of a sentence."""
    return f"python -m sglang.launch_server with --kv-cache-dtype {FLAGS[kv.k.name]} and its other arguments unchanged"


def there(client: Client, kv: KVConfig) -> ServerFacts:
    """What the server that is to answer for `kv` says of itself.

    Raises: IncompleteError when there is none at its address, with what to start; EngineError when it is no SGLang.
    """
    try:
        return ask_facts(client)
    except IncompleteError as error:
        hint = f"start {started(kv)} at this address and run the same command again: what is answered is kept"
        raise IncompleteError(error.message, hint=hint) from None


def other_type(
    kv: KVConfig, facts: ServerFacts, shape: CacheShape, *, url: str, shared: bool, options: Mapping[str, str]
) -> RefractError:
    """The error for a server whose KV type is not that of `kv`.

    With one address for both sides it is another side's turn if the type is one of the run's, so that the run goes on
    when the servers have been exchanged.
    """
    texts = [options.get("reference_kv", ""), *options.get("candidate_kv", "").split(";")]
    turns = [parse_kv(text) for text in texts if text]
    expected = not turns or any(serves(turn, facts, shape) for turn in turns)
    return other_kv(
        "SGLang",
        url,
        shared=shared and expected,
        asked=f"{FLAGS[kv.k.name]} for {kv}",
        found=f"{stored_type(facts, shape)} (--kv-cache-dtype {facts.kv_type})",
        start=started(kv),
    )
