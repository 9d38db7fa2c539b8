"""An engine without a model: deterministic, quick, and breakable on purpose."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from refract.engine import Blobs, Capability, Check, Identity, LoadSpec, Session
from refract.errors import ConfigMismatchError, KVUnsupportedError
from refract.kv import Format, KVConfig
from refract.testing.behaviour import Behaviour, Rewrite
from refract.testing.faults import Fault
from refract.testing.model import HEAD_DIM, FakeModel, Respond, strength_of
from refract.testing.session import FakeSession
from refract.testing.tokenizer import FakeTokenizer
from refract.work import EffectiveKV, Request

LAYERS, KV_HEADS = 4, 2


@dataclass(slots=True, kw_only=True)
class FakeEngine:
    """A tiny deterministic engine over 256 byte tokens; fulfils `refract.engine.Engine`.

    A model is any text, or a file whose content decides what it computes. Compressed configurations get noise by format
    (`strength_of`). `candidate_behaviour`, a `Behaviour` or a function that rewrites answers, breaks the sessions of
    every configuration that is not 16 bits throughout, with `break_reference` those too. `respond` gives the tokens the
    model knows to follow a prompt. `fault` ends the run early. `estimator_top_k` makes comparisons a lower bound from K
    listed tokens. `control` are the options under which the model moves by `kernel_noise`, and a compressed cache by
    `chaos` times the format's own noise. `loads` are the configurations loaded so far and `answered` the requests, in
    order.
    """

    has_chat_template: bool = True
    max_context: int = 1 << 16
    offered: frozenset[Capability] = frozenset(Capability)
    refused_formats: frozenset[str] = frozenset({"fp8_e5m2"})
    candidate_behaviour: Behaviour | Rewrite | None = None
    break_reference: bool = False
    respond: Respond | None = None
    fault: Fault | None = None
    estimator_top_k: int = 0
    control: Mapping[str, str] | None = field(default_factory=lambda: {"chunk": "128"})
    control_by_default: bool = False
    kernel_noise: float = 0.001
    chaos: float = 0.3
    build: str = "1"
    loads: list[str] = field(default_factory=list)
    answered: list[Request] = field(default_factory=list)
    open_sessions: int = 0

    @property
    def name(self) -> str:
        """fake."""
        return "fake"

    def capabilities(self, kv: KVConfig) -> frozenset[Capability]:
        """What was offered, whatever the configuration."""
        return self.offered

    def check(self, model: str) -> list[Check]:
        """One check that succeeds."""
        return [Check(name="fake engine", status="ok", message="needs nothing")]

    def check_kv(self, model: str, kv: KVConfig) -> None:
        """Returns unless a format is among those refused. Raises: KVUnsupportedError."""
        for side in (kv.k, kv.v):
            if side.name in self.refused_formats:
                raise KVUnsupportedError(f"the fake engine has no {side.name}", hint="name another format")

    def tokenizer(self, model: str) -> FakeTokenizer:
        """The byte tokenizer."""
        return FakeTokenizer(has_chat_template=self.has_chat_template)

    def context_length(self, model: str) -> int:
        """`max_context`."""
        return self.max_context

    def identify(self, spec: LoadSpec) -> Identity:
        """The content of a model file, not its path, is what counts."""
        return Identity(
            engine=self.name,
            build=self.build,
            model=f"sha256:{_fingerprint(spec.model)}",
            kv=str(spec.kv),
            max_tokens=spec.max_tokens,
            options=dict(spec.options),
        )

    def control_options(self, options: Mapping[str, str], kv: KVConfig) -> Mapping[str, str] | None:
        """`control`."""
        return self.control

    def describe(self, model: str) -> Mapping[str, str | int]:
        """Architecture and layers."""
        return {"architecture": "fake", "layers": LAYERS, "weights": "none", "device": "cpu"}

    def load(self, spec: LoadSpec, blobs: Blobs) -> AbstractContextManager[Session]:
        """A session. Raises: KVUnsupportedError before anything is loaded; ConfigMismatchError for the wrong server."""
        self.check_kv(spec.model, spec.kv)
        return self._session(spec, blobs)

    @contextmanager
    def _session(self, spec: LoadSpec, blobs: Blobs) -> Iterator[Session]:
        broken = self.break_reference or not spec.kv.is_reference_like
        behaviour = self.candidate_behaviour if broken else None
        self.loads.append(str(spec.kv))
        if behaviour is Behaviour.WRONG_SERVER:
            raise ConfigMismatchError(f"asked for {spec.kv}, the engine runs ctk=f16,ctv=f16")
        inactive = isinstance(behaviour, Behaviour) and behaviour.inactive
        model = FakeModel(
            seed=int(_fingerprint(spec.model)[:12], 16),
            strength=0.0 if inactive else strength_of(spec.kv),
            jitter=self._jitter(spec),
            respond=None if behaviour is Behaviour.RETRIEVES_NOTHING else self.respond,
        )
        self.open_sessions += 1
        try:
            yield FakeSession(
                model=model,
                effective=effective_kv(spec.kv, compressed=behaviour is not Behaviour.NEVER_COMPRESSED),
                max_tokens=spec.max_tokens,
                blobs=blobs,
                behaviour=behaviour,
                fault=self.fault,
                estimator_top_k=self.estimator_top_k,
                answered=self.answered.append,
            )
        finally:
            self.open_sessions -= 1

    def _jitter(self, spec: LoadSpec) -> float:
        """Standard deviation of what the control adds to the logits; 0 without it."""
        if not self.control or not self.control.items() <= spec.options.items():
            return 0.0
        return self.kernel_noise + self.chaos * strength_of(spec.kv)


def effective_kv(kv: KVConfig, *, compressed: bool = True) -> EffectiveKV:
    """What the fake engine allocates for a configuration; with `compressed` false it keeps all layers in 16 bits."""
    own = len(kv.layers(LAYERS)) if compressed else 0
    bits = sum(own * _bits(side) + (LAYERS - own) * 16.0 for side in (kv.k, kv.v))
    acted = compressed and (kv.k.compressed or kv.v.compressed)
    return EffectiveKV(
        k=str(kv.k),
        v=str(kv.v),
        layers=LAYERS,
        layers_compressed=own if acted else 0,
        bytes_per_token=KV_HEADS * HEAD_DIM * bits / 8.0,
        notes=() if compressed else ("compression is off",),
    )


def _bits(side: Format) -> float:
    return side.bits_per_value(HEAD_DIM) or 4.0


def _fingerprint(model: str) -> str:
    file = Path(model)
    content = file.read_bytes() if file.is_file() else model.encode()
    return hashlib.sha256(content).hexdigest()
