"""Answers of every kind, with all the numbers a broken engine can come up with."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from refract.run.codec import Storable
from refract.work import Base, BlobRef, Distributions, Divergence, EffectiveKV, Generation, TokenScores

lengths = st.integers(0, 6)
texts = st.text(max_size=20)
refs = st.builds(
    BlobRef,
    sha256=st.text("0123456789abcdef", min_size=64, max_size=64),
    size_bytes=st.integers(0, 1 << 50),
    format=texts,
)


def floats(*shape: int) -> st.SearchStrategy[Any]:
    return hnp.arrays(np.float32, shape, elements=st.floats(width=32, allow_nan=True, allow_infinity=True))


def flags(length: int) -> st.SearchStrategy[Any]:
    return hnp.arrays(np.bool_, (length,))


def ints(*shape: int) -> st.SearchStrategy[Any]:
    return hnp.arrays(np.int32, shape, elements=st.integers(-(2**31), 2**31 - 1))


@st.composite
def distributions(draw: st.DrawFn) -> Distributions:
    n, k = draw(lengths), draw(st.integers(1, 4))
    return Distributions(ids=draw(ints(n, k)), logprobs=draw(floats(n, k)), tail=draw(floats(n)))


@st.composite
def divergences(draw: st.DrawFn) -> Divergence:
    n = draw(lengths)
    return Divergence(
        kl=draw(floats(n)),
        same_top=draw(flags(n)),
        reference_margin=draw(floats(n)),
        token_nll_delta=draw(floats(n)),
        token_p_delta=draw(floats(n)),
        reference_nll=draw(floats(n)),
        reference_finite=draw(flags(n)),
        window=draw(ints(n)),
        estimator=draw(texts),
    )


generations = st.builds(
    Generation,
    tokens=st.lists(st.integers(0, 2**31 - 1), max_size=8).map(tuple),
    stop=st.sampled_from(["eos", "length"]),
    listed=st.none() | distributions(),
    base=st.none() | refs,
)
scores = st.builds(TokenScores, logprobs=lengths.flatmap(floats), listed=st.none() | distributions())
effectives = st.builds(
    EffectiveKV,
    k=texts,
    v=texts,
    layers=st.integers(0, 200),
    layers_compressed=st.integers(0, 200),
    bytes_per_token=st.floats(0.0, 1e9),
    notes=st.lists(texts, max_size=3).map(tuple),
)
storables: st.SearchStrategy[Storable] = st.one_of(
    generations, scores, st.builds(Base, blob=refs), divergences(), effectives
)
