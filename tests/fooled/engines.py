"""Engines that run or allocate something else than they were asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace

from refract.engine import Blobs, LoadSpec, Session
from refract.kv import parse_kv
from refract.testing import FakeEngine, FakeSession
from refract.testing.engine import effective_kv
from refract.work import EffectiveKV


@dataclass(slots=True, kw_only=True)
class Relabelled(FakeEngine):
    """Runs `really[kv]` for each configuration named there; `claims` is what it says it allocated, the request by
    default."""

    really: Mapping[str, str] = field(default_factory=dict)
    claims: Mapping[str, EffectiveKV] = field(default_factory=dict)

    def load(self, spec: LoadSpec, blobs: Blobs) -> AbstractContextManager[Session]:
        """The session of another configuration under the name of this one."""
        name = str(spec.kv)
        kv = parse_kv(self.really.get(name, name))
        claimed = self.claims.get(name, effective_kv(spec.kv))
        return _claiming(FakeEngine.load(self, replace(spec, kv=kv), blobs), claimed)


@contextmanager
def _claiming(context: AbstractContextManager[Session], claimed: EffectiveKV) -> Iterator[Session]:
    with context as session:
        assert isinstance(session, FakeSession)
        session.effective_kv = claimed
        yield session


def allocated(kv: str, **changes: object) -> EffectiveKV:
    """What a configuration allocates, but for `changes`."""
    return replace(effective_kv(parse_kv(kv)), **changes)  # type: ignore[arg-type]
