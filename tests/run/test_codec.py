from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refract.run.codec import VERSION, CodecError, Storable, decode, encode
from refract.work import Failure, Generation, TokenScores

from .strategies import storables

ANSWER = TokenScores(logprobs=np.array([-1.5, -np.inf, np.nan], dtype=np.float32))


@given(storables)
def test_an_answer_comes_back_bit_for_bit(answer: Storable) -> None:
    data = encode(answer)
    back = decode(data)
    assert type(back) is type(answer)
    assert encode(back) == data
    assert repr(back) == repr(answer)


@given(storables, st.data())
def test_damaged_bytes_are_refused_or_still_an_answer_but_never_another_error(
    answer: Storable, data: st.DataObject
) -> None:
    good = encode(answer)
    at = data.draw(st.integers(0, len(good) - 1))
    bad = bytearray(good)
    bad[at] ^= 1 << data.draw(st.integers(0, 7))
    for candidate in (bytes(bad), good[:at]):
        try:
            decode(candidate)
        except CodecError:
            continue


def test_arrays_keep_their_type_and_their_special_values() -> None:
    back = decode(encode(ANSWER))
    assert isinstance(back, TokenScores)
    assert back.logprobs.dtype == np.float32
    assert np.array_equal(back.logprobs, ANSWER.logprobs, equal_nan=True)


def test_tokens_of_numpy_type_are_stored_as_numbers() -> None:
    tokens = tuple(np.array([3, 4], dtype=np.int32))
    back = decode(encode(Generation(tokens=tokens, stop="length")))
    assert isinstance(back, Generation)
    assert back.tokens == (3, 4)
    assert all(type(token) is int for token in back.tokens)


def test_a_failure_is_never_stored() -> None:
    with pytest.raises(TypeError, match="Failure is never stored"):
        encode(Failure(kind="timeout", message="…"))  # type: ignore[arg-type]


def test_a_newer_version_is_refused() -> None:
    data = bytearray(encode(ANSWER))
    data[4] = VERSION + 1
    with pytest.raises(CodecError, match=f"version {VERSION + 1}, expected {VERSION}"):
        decode(bytes(data))


def test_a_pickle_is_never_opened() -> None:
    with pytest.raises(CodecError):
        decode(pickle.dumps(ANSWER))
    with pytest.raises(CodecError, match=r"arrays of \|O8"):
        decode(encode(ANSWER).replace(b"<f4", b"|O8"))
    with pytest.raises(TypeError, match="arrays of object have no encoding"):
        encode(TokenScores(logprobs=np.array([object()])))
