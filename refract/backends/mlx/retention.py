"""Which tokens of a sequence stay in 16 bits: the first ones, the newest ones, or all of a prompt."""

from __future__ import annotations

from dataclasses import dataclass

from refract.kv import KVConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """The first `sink` and the newest `residual` tokens are kept raw; with `raw_prefill` so is all that comes several
    tokens at a time, until a single one comes.

    Tokens that come together are raw to one another where `residual` is more than 0: what leaves the newest ones is
    compressed when the next tokens come, as caches with a full-precision window do it (KIVI, arXiv:2402.02750).
    """

    sink: int = 0
    residual: int = 0
    raw_prefill: bool = False

    @property
    def idle(self) -> bool:
        """Whether everything is compressed as it comes."""
        return not (self.sink or self.residual or self.raw_prefill)

    def compressed(self, start: int, count: int) -> int:
        """How many tokens, from the first on and but for the sink, are compressed when `count` have joined `start`."""
        if count > 1 and self.raw_prefill:
            return 0
        if count > 1 and self.residual:
            return max(0, min(start, start + count - self.residual))
        return self.settled(start + count)

    def settled(self, held: int) -> int:
        """The same when the newest of `held` tokens came alone."""
        return max(0, held - self.residual)

    @property
    def note(self) -> str:
        """What a report says of it; empty when idle."""
        parts = [f"the first {self.sink}"] * bool(self.sink) + [f"the newest {self.residual}"] * bool(self.residual)
        kept = f"{' and '.join(parts)} tokens stay f16" if parts else ""
        prompt = "a prompt is compressed when the first token after it comes" if self.raw_prefill else ""
        return "; ".join(filter(None, (kept, prompt)))


EVERYTHING = Retention()  # is compressed as it comes


def retention_of(kv: KVConfig) -> Retention:
    """What the modifiers sink, residual and prefill say."""
    return Retention(sink=int(kv.get("sink")), residual=int(kv.get("residual")), raw_prefill=kv.get("prefill") == "raw")
