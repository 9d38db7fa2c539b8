"""What engines of running servers share: their options, where the servers are, and the model's files here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import ClassVar

from refract.backends._http import Client
from refract.backends._models import Models
from refract.backends._options import refuse_no_number, refuse_unknown
from refract.backends._servers import Role, client_of, read_places, role_of
from refract.backends._tokenizer import HFTokenizer
from refract.engine import PLACES, Blobs, LoadSpec, Session
from refract.errors import UsageError
from refract.kv import KVConfig

_OPTIONS: Mapping[str, str] = {
    "url": "",
    "reference_url": "",
    "candidate_url": "",
    "reference_kv": "",
    "candidate_kv": "",
    "served_model": "",  # the one to ask for, where a server has several
    "parallel": "1",
    "top_k": "1000",  # tokens listed for a divergence, or as many as the server lists
    "timeout_s": "600",  # for one answer
    "patience_s": "30",  # for a server that is not there, or busy
}
_FREE = frozenset({"timeout_s", "patience_s"})  # options that change no answer
_NUMBERS = ("parallel", "top_k", "timeout_s", "patience_s")
_MOST = 1 << 20


class ServerEngine(ABC):
    """The part of `refract.engine.Engine` in which such engines are alike; a subclass fills in the rest.

    `asked` is what messages call the engine, `no_address` what it says without an address, with the way out.
    """

    name: ClassVar[str]
    asked: ClassVar[str]
    no_address: ClassVar[tuple[str, str]]
    control_by_default = False

    def __init__(self, options: Mapping[str, str] | None = None, cache_dir: Path | None = None) -> None:
        """Raises: UsageError for an option a running server cannot be given, a value it cannot take, or no address."""
        self._options = dict(_OPTIONS) | dict(options or {})
        self._cache_dir = cache_dir
        self._models = Models(self.asked, cache_dir)
        self._told_apart = False
        self._check_options(self._options)
        places = read_places(self._options)
        if places is None:
            message, hint = self.no_address
            raise UsageError(message, hint=hint)
        self._places = places

    def tokenizer(self, model: str) -> HFTokenizer:
        """The tokenizer of --model, a folder or a GGUF file; no weights are read."""
        return self._models.tokenizer(model)

    def control_options(self, options: Mapping[str, str], kv: KVConfig) -> Mapping[str, str] | None:
        """None: a running server's kernels are its own."""
        return None

    def describe(self, model: str) -> Mapping[str, str | int]:
        """Architecture, layers and head dimension as the local files say them; the weights are the server's."""
        weights = f"{self._models.source(model).weights} here; the server's own were asked"
        return self._models.describe(model, device="the server's", weights=weights)

    def load(self, spec: LoadSpec, blobs: Blobs) -> AbstractContextManager[Session]:
        """A session with the server of this side.

        Raises: IncompleteError where it has to be started first; ConfigMismatchError; EngineError.
        """
        return self._session(spec, blobs)

    @abstractmethod
    def check_kv(self, model: str, kv: KVConfig) -> None:
        """Raises: UsageError, KVUnsupportedError for what no server of this run can be."""

    @abstractmethod
    def open_session(self, spec: LoadSpec, blobs: Blobs) -> Session:
        """A session with the server of this side, which is checked first."""

    @abstractmethod
    def refuse_one_server(self, model: str) -> None:
        """Raises: UsageError when both addresses reach one process, ConfigMismatchError for unlike servers."""

    @contextmanager
    def _session(self, spec: LoadSpec, blobs: Blobs) -> Iterator[Session]:
        self.check_kv(spec.model, spec.kv)
        yield self.open_session(spec, blobs)

    def _tell_apart(self, model: str) -> None:
        """Makes sure, once, that two addresses are two servers. Raises: as `refuse_one_server`."""
        if len(self._places.every) > 1 and not self._told_apart:
            self.refuse_one_server(model)
            self._told_apart = True

    def _client(self, url: str, name: str) -> Client:
        timeout_s, patience_s = (float(self._options[option]) for option in ("timeout_s", "patience_s"))
        return client_of(url, name, timeout_s=timeout_s, patience_s=patience_s)

    def _memory(self, model: str) -> str:
        """Under what the facts of this model's servers are remembered."""
        return f"{self.name} {self._models.fingerprint(model)} {self._options['served_model']}"

    def _role(self, kv: KVConfig) -> Role:
        return role_of(kv, self._options)

    def _effective(self, spec: LoadSpec) -> dict[str, str]:
        """Every option with its value: the spec's own over those the engine was made with."""
        options = self._options | dict(spec.options)
        self._check_options(options)
        return options

    def _kept(self, spec: LoadSpec) -> dict[str, str]:
        """The options that can change an answer."""
        return {name: value for name, value in self._effective(spec).items() if name not in PLACES | _FREE}

    def _check_options(self, options: Mapping[str, str]) -> None:
        refuse_unknown(self.asked, options, list(_OPTIONS))
        for name in _NUMBERS:
            refuse_no_number(name, options.get(name, _OPTIONS[name]), most=_MOST, default=_OPTIONS[name])
