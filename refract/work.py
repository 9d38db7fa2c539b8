"""Units of engine work and their results: frozen values without I/O.

Token ids, never text, cross the engine boundary. A request together with the identity of the configuration that answers
it is all that decides the answer; `request_key` is therefore all the answer store needs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Literal

import numpy as np
import numpy.typing as npt

TokenIds = tuple[int, ...]
Protocol = Literal["prefill", "decode"]
Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
KEY_VERSION = 1  # raised whenever the meaning of a request or an answer changes, so that old answers are not reused


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of a conversation: role "system", "user", "assistant" or "tool"."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Generate:
    """Greedy continuation of `prompt`.

    `max_new_tokens` counts the end-of-sequence token. With `top_k` > 0 every step lists its K most probable tokens.
    With `keep_base` the distributions along the way are kept as the reference's side of a KL divergence in decode
    protocol, which then costs nothing. `salt` changes the key and nothing else: a salted request is answered anew.
    """

    prompt: TokenIds
    max_new_tokens: int
    top_k: int = 0
    keep_base: bool = False
    salt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreTokens:
    """Teacher-forced log-probabilities of `tokens[start:]`, each given everything before it.

    `step` is how many tokens a forward pass takes from `start` on: 1 is the decode protocol.
    """

    tokens: TokenIds
    start: int
    top_k: int
    step: int = 1
    salt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A teacher-forced stretch of text: positions `start … len(tokens)-1` are predicted and scored.

    Position i is predicted from tokens[:i], so `start` is at least 1.
    """

    tokens: TokenIds
    start: int

    def __post_init__(self) -> None:
        if not 1 <= self.start < len(self.tokens):
            raise ValueError(f"window of {len(self.tokens)} tokens cannot be scored from {self.start}")

    @property
    def positions(self) -> int:
        """How many positions are scored."""
        return len(self.tokens) - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteBase:
    """The reference's side of a KL divergence: its distributions at every scored position, kept by the engine."""

    windows: tuple[Window, ...]
    protocol: Protocol
    salt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobRef:
    """A large binary answer kept beside the store, named by the sha256 of its bytes."""

    sha256: str
    size_bytes: int
    format: str  # engine-specific name and version of the layout, such as "mlx-hidden/1"


BLOB_LIST = "blobs/1"  # the format of a blob that stands for several others


def pack_blobs(refs: Sequence[BlobRef]) -> bytes:
    """What a blob of format BLOB_LIST holds: JSON, a list of objects with the fields of BlobRef."""
    return json.dumps([asdict(ref) for ref in refs]).encode()


def unpack_blobs(data: bytes) -> tuple[BlobRef, ...]:
    """The blobs that `pack_blobs` joined. Raises: ValueError, TypeError for other bytes."""
    return tuple(BlobRef(**ref) for ref in json.loads(data))


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareBase:
    """The candidate's side of a KL divergence, over the same windows and protocol as `base`."""

    windows: tuple[Window, ...]
    protocol: Protocol
    base: BlobRef
    salt: str = ""


Request = Generate | ScoreTokens | WriteBase | CompareBase


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Distributions:
    """The K most probable tokens at each of N positions, most probable first.

    ids (N, K) int32; logprobs (N, K) float32, natural logarithms of a full-vocabulary softmax; tail (N,) float32, log
    of the mass outside the K (-inf when nothing is outside).
    """

    ids: Ints
    logprobs: Floats
    tail: Floats

    def __post_init__(self) -> None:
        if self.ids.shape != self.logprobs.shape or self.tail.shape != self.ids.shape[:1]:
            raise ValueError(f"shapes disagree: {self.ids.shape}, {self.logprobs.shape}, {self.tail.shape}")

    def __len__(self) -> int:
        return int(self.ids.shape[0])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Generation:
    """Generated token ids, the end-of-sequence token included when `stop` is "eos"."""

    tokens: TokenIds
    stop: Literal["eos", "length"]
    listed: Distributions | None = None
    base: BlobRef | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenScores:
    """Log-probabilities (N,) of the forced tokens, float32 nats, and the K most probable alternatives at each."""

    logprobs: Floats
    listed: Distributions | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The answer to `WriteBase`."""

    blob: BlobRef


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Divergence:
    """KL(reference ‖ candidate) at N scored positions and what else was seen there.

    kl (N,) nats, not finite where a side's distribution was not; same_top (N,) bool; reference_margin (N,) the
    reference's top-1 minus top-2 probability; token_nll_delta (N,) nats, candidate minus reference, of the text's own
    token; token_p_delta (N,) difference of that token's probability, candidate minus reference; window (N,) int32 index
    of the window; reference_nll (N,) nats of the text's token under the reference. `reference_finite` (N,) bool.
    """

    kl: Floats
    same_top: npt.NDArray[np.bool_]
    reference_margin: Floats
    token_nll_delta: Floats
    token_p_delta: Floats
    reference_nll: Floats
    reference_finite: npt.NDArray[np.bool_]
    window: Ints
    estimator: str

    def __post_init__(self) -> None:
        arrays = (self.same_top, self.reference_margin, self.token_nll_delta, self.token_p_delta)
        shapes = {a.shape for a in (self.kl, *arrays, self.reference_nll, self.reference_finite, self.window)}
        if len(shapes) != 1 or len(next(iter(shapes))) != 1:
            raise ValueError(f"arrays of one length expected, found {sorted(shapes)}")

    def __len__(self) -> int:
        return int(self.kl.shape[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A request the engine could not answer. Reported, never scored, never stored."""

    kind: str
    message: str


Answer = Generation | TokenScores | Base | Divergence


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveKV:
    """What the engine really allocated, as read from it.

    `bytes_per_token` is the size of one token's K and V over all layers; `layers` counts attention layers that keep a
    cache, `layers_compressed` those in which at least one side is stored in fewer bits than 16.
    """

    k: str
    v: str
    layers: int
    layers_compressed: int
    bytes_per_token: float
    notes: tuple[str, ...] = field(default=())


def request_key(request: Request, identity_digest: str) -> str:
    """sha256 hex digest that names the answer to `request` under the configuration `identity_digest` names."""
    body = json.dumps(
        [KEY_VERSION, type(request).__name__, request, identity_digest],
        default=_plain,  # dataclasses.asdict would copy every token
        separators=(",", ":"),
        sort_keys=True,
    )
    return hashlib.sha256(body.encode()).hexdigest()


def _plain(value: Request | Window | BlobRef) -> dict[str, object]:
    return {f.name: getattr(value, f.name) for f in fields(value)}
