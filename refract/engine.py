"""What an engine is: protocols that backends fulfil and the values they exchange with the runner."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from refract.kv import KVConfig
from refract.work import Answer, BlobRef, EffectiveKV, Failure, Message, Request, TokenIds

# Options that say where an engine is, and whose. They change no answer: no identity holds them, and no report.
PLACES = frozenset({"llama_bin", "python", "url", "reference_url", "candidate_url", "reference_kv", "candidate_kv"})


class Capability(Enum):
    """Something an axis may need of an engine."""

    GENERATE = "greedy generation from token ids"
    TOP_K = "top-k log-probabilities of generated tokens"
    SCORE_TOKENS = "teacher-forced log-probabilities"
    KL_PREFILL = "KL divergence over windows, read from the compressed cache during prefill"
    KL_DEEP = "KL divergence of some positions behind a long cache, in one prefill"
    KL_DECODE = "KL divergence over windows, token by token"
    KEEP_BASE = "the distributions of a generation kept as a KL base"


class Tokenizer(Protocol):
    """Text to token ids and back, exactly as the model was trained; never loads weights."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def eos_ids(self) -> frozenset[int]: ...

    @property
    def has_chat_template(self) -> bool: ...

    def encode(self, text: str, *, add_special: bool = False) -> TokenIds:
        """Ids of `text`; with `add_special` the model's own begin-of-sequence token comes first."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens included, invalid UTF-8 replaced."""

    def render(self, messages: Sequence[Message]) -> TokenIds:
        """Ids of the chat-formatted conversation, ready for the assistant's turn, with exactly one BOS where the
        model uses one. A model without a template gets the contents joined by blank lines."""


@runtime_checkable
class Blobs(Protocol):
    """Where a session keeps binary answers that are too large for the answer store."""

    def put(self, data: bytes, *, format: str) -> BlobRef:
        """Stores `data` durably and names it."""

    def path(self, ref: BlobRef) -> Path:
        """The file that holds the blob. Raises StoreError when it is missing or damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSpec:
    """Everything that decides what a session computes.

    `max_tokens` is the longest sequence of the run, the same for every configuration; `options` are the engine's own.
    """

    model: str
    kv: KVConfig
    max_tokens: int
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What an answer depends on besides its request. Equal digests mean interchangeable answers."""

    engine: str
    build: str
    model: str  # fingerprint of the weights and tokenizer, not a path
    kv: str
    max_tokens: int  # 0 where the longest sequence of a run changes no answer
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """sha256 hex of all fields."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of `refract selftest`."""

    name: str
    status: Literal["ok", "warn", "fail"]
    message: str
    fix: str | None = None


class Session(Protocol):
    """A model loaded under one KV configuration."""

    @property
    def effective_kv(self) -> EffectiveKV: ...

    def run(self, requests: Sequence[Request]) -> Iterator[tuple[Request, Answer | Failure]]:
        """Answers every request once, in any order, each as soon as it is known.

        Every request starts from an empty KV cache, and its answer does not depend on the other requests. Batching is
        the session's business.

        Raises: EngineError when the engine as a whole cannot go on.
        """


class Engine(Protocol):
    """A way to run a model. Construction and every method but `load` are cheap and load no weights."""

    @property
    def name(self) -> str: ...

    def capabilities(self, kv: KVConfig) -> frozenset[Capability]:
        """What sessions under `kv` can do."""

    def check(self, model: str) -> list[Check]:
        """The state of everything this engine needs here, for `refract selftest`."""

    def check_kv(self, model: str, kv: KVConfig) -> None:
        """Returns when this engine can run `model` under `kv`. Raises: KVUnsupportedError, ModelError."""

    def tokenizer(self, model: str) -> Tokenizer: ...

    def context_length(self, model: str) -> int:
        """The longest sequence the model was trained for, in tokens."""

    def identify(self, spec: LoadSpec) -> Identity: ...

    @property
    def control_by_default(self) -> bool:
        """Whether its kernels are noisy enough that the reference has a control run though nobody asked for one."""

    def control_options(self, options: Mapping[str, str], kv: KVConfig) -> Mapping[str, str] | None:
        """Other values of some of its options under which it does the same arithmetic in another order than `options`.

        Identities under both differ. None where it has no such change under `kv`.
        """

    def describe(self, model: str) -> Mapping[str, str | int]:
        """What a report says of the model besides its name: architecture, parameters, weights' format, device."""

    def load(self, spec: LoadSpec, blobs: Blobs) -> AbstractContextManager[Session]:
        """A session whose effective KV configuration is the requested one.

        Raises: ConfigMismatchError, ModelError, MissingPackageError, EngineError.
        """
