"""Measures every KV format of the MLX backend on the default model, for the table in docs/kv-formats.md.

    python -m benchmarks.formats_kl [NAME …]

Each format stores keys and values of two windows of 512 tokens of the built-in text; the mean divergence from f16 over
their second halves goes to refract/cli/formats_kl.json, by name. Formats that code several tokens together are measured
token by token, the others in passes. A few minutes; `refract fetch --model smollm2` first.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from refract.atomic import write_atomically
from refract.axes.windows import cut_windows
from refract.backends.mlx.engine import MLXEngine
from refract.data.corpus import load_corpus
from refract.data.models import DEFAULT_MODEL, model_path
from refract.engine import Capability, LoadSpec
from refract.errors import RefractError
from refract.formats import BUILT
from refract.kv import KVConfig, parse_kv
from refract.run.blobs import BlobFolder
from refract.run.cache import cache_folder
from refract.work import Base, BlobRef, CompareBase, Divergence, Protocol, Request, Window, WriteBase

TABLE = Path(__file__).parents[1] / "refract" / "cli" / "formats_kl.json"
REFERENCE = parse_kv("ctk=f16,ctv=f16")
WINDOWS, SIZE = 2, 512


class Measurer:
    """One model, its windows, and the reference's distributions a protocol."""

    def __init__(self, engine: MLXEngine, model: str, blobs: BlobFolder) -> None:
        self.engine, self.model, self.blobs = engine, model, blobs
        texts = cut_windows(load_corpus(None), engine.tokenizer(model), count=WINDOWS, size=SIZE)
        self.windows = tuple(Window(tokens=text.tokens, start=SIZE // 2) for text in texts)
        self._bases: dict[Protocol, BlobRef] = {}

    def mean_kl(self, kv: KVConfig) -> float:
        """Nats a token."""
        protocol: Protocol = "prefill" if Capability.KL_PREFILL in self.engine.capabilities(kv) else "decode"
        found = self._answer(kv, CompareBase(windows=self.windows, protocol=protocol, base=self._base(protocol)))
        if not isinstance(found, Divergence):
            raise TypeError(f"expected a divergence, found {found}")
        return float(found.kl.mean())

    def _base(self, protocol: Protocol) -> BlobRef:
        if protocol not in self._bases:
            found = self._answer(REFERENCE, WriteBase(windows=self.windows, protocol=protocol))
            if not isinstance(found, Base):
                raise TypeError(f"expected a base, found {found}")
            self._bases[protocol] = found.blob
        return self._bases[protocol]

    def _answer(self, kv: KVConfig, request: Request) -> object:
        with self.engine.load(LoadSpec(model=self.model, kv=kv, max_tokens=SIZE), self.blobs) as session:
            return next(answer for _, answer in session.run([request]))


def main(names: Sequence[str]) -> None:
    """Measures the named formats, or all, and writes the table."""
    found: dict[str, float] = json.loads(TABLE.read_text("utf-8")) if TABLE.exists() else {}
    cache = cache_folder()
    with TemporaryDirectory(prefix="refract-formats-") as folder:
        measurer = Measurer(MLXEngine(cache_dir=cache), str(model_path(cache, DEFAULT_MODEL)), BlobFolder(Path(folder)))
        for name in names or BUILT["mlx"]:
            try:
                found[name] = float(f"{measurer.mean_kl(parse_kv(f'ctk={name},ctv={name}')):.3g}")
            except RefractError as error:
                print(f"{name}: {error.message}", flush=True)
                continue
            print(f"{name}: {found[name]}", flush=True)
    ordered = {name: found[name] for name in BUILT["mlx"] if name in found}
    write_atomically(TABLE, (json.dumps(ordered, indent=2) + "\n").encode())


if __name__ == "__main__":
    main(sys.argv[1:])
