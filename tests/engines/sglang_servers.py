"""Real SGLang servers on processors, one for each KV type, started when first needed and kept for all tests.

`REFRACT_TEST_SGLANG_PYTHON` names the interpreter of an environment that has SGLang; sglang-cpu-requirements.txt says
how to make one. Its torchvision cannot load its compiled operators beside a CPU build of torch: sglang_site, put on the
path of the servers, declares their schemas, so that it can be imported. Nothing that text goes through is replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from refract.backends.sglang.engine import SGLangEngine
from refract.engine import LoadSpec, Session
from refract.kv import parse_kv
from refract.run.blobs import BlobFolder

MAX_TOKENS = 512


class Sessions:
    """Sessions by KV type, each with a server of its own."""

    def __init__(self, engine: SGLangEngine, model: Path, blobs: BlobFolder) -> None:
        self.engine, self.model, self.blobs = engine, model, blobs
        self.stack = ExitStack()
        self._open: dict[str, Session] = {}
        self.urls: dict[str, str] = {}

    def spec(self, name: str) -> LoadSpec:
        """What the session of a KV type is loaded with."""
        return LoadSpec(model=str(self.model), kv=parse_kv(f"ctk={name},ctv={name}"), max_tokens=MAX_TOKENS)

    def __call__(self, name: str) -> Session:
        """The session of a KV type."""
        if name not in self._open:
            session = self.stack.enter_context(self.engine.load(self.spec(name), self.blobs))
            self._open[name] = session
            self.urls[name] = session._asker.client.url  # type: ignore[attr-defined]  # for tests that give addresses
        return self._open[name]

    def url(self, name: str) -> str:
        """The address of the server of a KV type."""
        self(name)
        return self.urls[name]


@contextmanager
def sessions(python: str, model: Path, folder: Path) -> Iterator[Sessions]:
    """The sessions of a model; their servers are ended with the block."""
    engine = SGLangEngine({"launch": "1", "python": python}, folder / "cache")
    made = Sessions(engine, model, BlobFolder(folder / "blobs"))
    with made.stack:
        yield made
