from __future__ import annotations

import pytest

from refract.run.progress import Answered, request_cost, silent
from refract.work import BlobRef, CompareBase, Generate, Request, ScoreTokens, Window, WriteBase

WINDOWS = (Window(tokens=tuple(range(100)), start=50), Window(tokens=tuple(range(20)), start=10))
REF = BlobRef(sha256="0" * 64, size_bytes=1, format="x/1")


@pytest.mark.parametrize(
    ("request_", "cost"),
    [
        (Generate(prompt=(1,) * 100, max_new_tokens=8), 10.0 + 8.0),
        (ScoreTokens(tokens=(1,) * 100, start=90, top_k=0), 9.0 + 10.0),
        (ScoreTokens(tokens=(1,) * 100, start=90, top_k=0, step=10), 9.0 + 1.0),
        (WriteBase(windows=WINDOWS, protocol="prefill"), 12.0),
        (WriteBase(windows=WINDOWS, protocol="decode"), 6.0 + 60.0),
        (CompareBase(windows=WINDOWS, protocol="prefill", base=REF), 24.0),
    ],
)
def test_work_is_counted_in_generated_tokens(request_: Request, cost: float) -> None:
    assert request_cost(request_) == pytest.approx(cost)


def test_silence() -> None:
    silent(Answered(phase="reference", kind="Generate", cost=1.0))
