"""What the engine contract stands on: its fixtures, one session per configuration, and how requests are asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, cast

import numpy as np
import pytest

from refract.engine import Capability, Engine, LoadSpec, Session, Tokenizer
from refract.kv import KVConfig, parse_kv
from refract.run.blobs import BlobFolder
from refract.run.replies import complaint, describe
from refract.work import (
    Answer,
    Base,
    CompareBase,
    Divergence,
    Failure,
    Generate,
    Generation,
    Message,
    Protocol,
    Request,
    TokenIds,
    Window,
    WriteBase,
)

TEXTS = (
    "The lighthouse keeper counted the ships every evening and wrote the number in a small blue book.",
    "Name three rivers in Europe and say where each of them ends.",
    "def area(width, height):\n    return width * height\n",
    "Ist es wahr, daß Wärme immer vom warmen zum kalten Körper fließt? Ja, außer man hilft nach. ✅",
)
NEW_TOKENS = 12


def answers(session: Session, requests: Sequence[Request]) -> dict[Request, Answer | Failure]:
    """The session's answers by request; fails the test unless every request is answered once and in kind."""
    found: dict[Request, Answer | Failure] = {}
    for request, answer in session.run(tuple(requests)):
        assert request in requests, f"answered a request that was never asked: {describe(request)}"
        assert request not in found, f"answered twice: {describe(request)}"
        assert complaint(request, answer) is None, complaint(request, answer)
        found[request] = answer
    assert set(found) == set(requests), "left requests unanswered"
    return found


class ContractFixtures:
    """Fixtures that subclasses provide or override, and what the tests share."""

    batch_tolerance_nats: ClassVar[float] = 0.0
    forced_tolerance_nats: ClassVar[float] = 1e-4
    self_kl_nats: ClassVar[float] = 0.0
    max_tokens: ClassVar[int] = 512

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls) -> Engine:
        """The engine under test."""
        raise NotImplementedError("provide a class-scoped fixture `engine`")

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls) -> str:
        """A small model."""
        raise NotImplementedError("provide a class-scoped fixture `model`")

    @pytest.fixture(scope="class")
    @classmethod
    def reference_kv(cls) -> KVConfig:
        """A configuration without loss."""
        return parse_kv("ctk=f16,ctv=f16")

    @pytest.fixture(scope="class")
    @classmethod
    def lossy_kv(cls) -> KVConfig:
        """A configuration that stores both sides in fewer bits."""
        return parse_kv("ctk=q4_0,ctv=q4_0")

    @pytest.fixture(scope="class")
    @classmethod
    def refused_kv(cls) -> KVConfig | None:
        """A configuration the engine cannot carry out; None when it can carry out all."""
        return None

    @pytest.fixture(scope="class")
    @classmethod
    def options(cls) -> dict[str, str]:
        """The engine's own options."""
        return {}

    @pytest.fixture(scope="class")
    @classmethod
    def blobs(cls, tmp_path_factory: pytest.TempPathFactory) -> BlobFolder:
        """Where the sessions keep their bases."""
        return BlobFolder(Path(tmp_path_factory.mktemp("blobs")))

    @pytest.fixture(scope="class")
    @classmethod
    def reference_spec(cls, model: str, reference_kv: KVConfig, options: dict[str, str]) -> LoadSpec:
        """What the reference session is loaded with."""
        return LoadSpec(model=model, kv=reference_kv, max_tokens=cls.max_tokens, options=options)

    @pytest.fixture(scope="class")
    @classmethod
    def lossy_spec(cls, model: str, lossy_kv: KVConfig, options: dict[str, str]) -> LoadSpec:
        """What the candidate's session is loaded with."""
        return LoadSpec(model=model, kv=lossy_kv, max_tokens=cls.max_tokens, options=options)

    @pytest.fixture(scope="class")
    @classmethod
    def reference(cls, engine: Engine, reference_spec: LoadSpec, blobs: BlobFolder) -> Iterator[Session]:
        """A session under `reference_kv`."""
        with engine.load(reference_spec, blobs) as session:
            yield session

    @pytest.fixture(scope="class")
    @classmethod
    def lossy(cls, engine: Engine, lossy_spec: LoadSpec, blobs: BlobFolder) -> Iterator[Session]:
        """A session under `lossy_kv`."""
        with engine.load(lossy_spec, blobs) as session:
            yield session

    @pytest.fixture(scope="class")
    @classmethod
    def tokenizer(cls, engine: Engine, model: str) -> Tokenizer:
        """The model's tokenizer."""
        return engine.tokenizer(model)

    @pytest.fixture(scope="class")
    @classmethod
    def prompts(cls, tokenizer: Tokenizer) -> tuple[TokenIds, ...]:
        """Rendered prompts of different lengths."""
        return tuple(tokenizer.render([Message(role="user", content=text)]) for text in TEXTS)

    @pytest.fixture(scope="class")
    @classmethod
    def windows(cls, tokenizer: Tokenizer) -> tuple[Window, ...]:
        """Windows of plain text, their second half scored."""
        ids = [tokenizer.encode(text, add_special=True) for text in TEXTS]
        return tuple(Window(tokens=tokens, start=len(tokens) // 2) for tokens in ids)

    @pytest.fixture(scope="class")
    @classmethod
    def generated(cls, reference: Session, prompts: tuple[TokenIds, ...]) -> dict[TokenIds, Generation]:
        """The reference's continuation of every prompt, with eight tokens listed at each step."""
        requests = [Generate(prompt=prompt, max_new_tokens=NEW_TOKENS, top_k=8) for prompt in prompts]
        found = answers(reference, requests)
        return {request.prompt: cast(Generation, found[request]) for request in requests}

    def ask(self, session: Session, prompts: Sequence[TokenIds], *, salt: str) -> dict[TokenIds, Generation]:
        requests = [Generate(prompt=prompt, max_new_tokens=NEW_TOKENS, top_k=8, salt=salt) for prompt in prompts]
        found = answers(session, requests)
        return {request.prompt: cast(Generation, found[request]) for request in requests}

    def check_close(self, own: Generation, other: Generation) -> None:
        assert own.listed is not None
        assert other.listed is not None
        difference = np.abs(own.listed.logprobs - other.listed.logprobs)
        assert float(difference.max(initial=0.0)) <= self.batch_tolerance_nats

    def compare(
        self, reference: Session, candidate: Session, windows: tuple[Window, ...], protocol: Protocol
    ) -> Divergence:
        (base,) = answers(reference, [WriteBase(windows=windows, protocol=protocol)]).values()
        assert isinstance(base, Base)
        request = CompareBase(windows=windows, protocol=protocol, base=base.blob)
        found = answers(candidate, [request])[request]
        assert isinstance(found, Divergence)
        return found

    def need(self, engine: Engine, kv: KVConfig, capability: Capability) -> None:
        if capability not in engine.capabilities(kv):
            pytest.skip(f"{engine.name} has no {capability.value}")
