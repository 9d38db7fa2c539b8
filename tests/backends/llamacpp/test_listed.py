"""The lists of llama-server, read by id."""

from __future__ import annotations

import numpy as np
import pytest

from refract.backends._listed import compare_listings
from refract.backends.llamacpp.listed import read_listing
from refract.errors import EngineError


def entry(token: int, *pairs: tuple[int, float | None]) -> dict[str, object]:
    top = [{"id": number, "logprob": value} for number, value in pairs]
    own = next((value for number, value in pairs if number == token), -9.0)
    return {"id": token, "logprob": own, "top_logprobs": top}


def test_lists_are_read_by_id() -> None:
    found = read_listing([entry(7, (7, -0.1), (3, -3.0)), entry(5, (3, -0.5), (5, -1.0))], (7, 5), 2)
    assert found is not None
    assert found.listed.ids.tolist() == [[7, 3], [3, 5]]
    assert found.logprobs.tolist() == pytest.approx([-0.1, -1.0])
    left = 1.0 - np.exp(-0.1) - np.exp(-3.0)
    assert np.exp(found.listed.tail[0]) == pytest.approx(left, abs=1e-6)


def test_entries_that_were_left_out_make_no_list() -> None:
    assert read_listing([entry(7, (7, -0.1))], (7, 5), 1) is None
    assert read_listing([entry(5, (5, -0.1))], (7,), 1) is None


def test_what_is_not_finite_stays_so() -> None:
    found = read_listing([entry(7, (7, None), (3, None))], (7,), 2)
    assert found is not None
    divergence = compare_listings(found, found)
    assert np.isnan(divergence.kl).all()
    assert not divergence.reference_finite.any()


@pytest.mark.parametrize("broken", [{"id": 7}, entry(7, (7, -0.1)), {"id": 7, "logprob": "x", "top_logprobs": []}])
def test_lists_shorter_than_asked_or_of_another_shape_are_errors(broken: dict[str, object]) -> None:
    with pytest.raises(EngineError, match="not as expected"):
        read_listing([broken], (7,), 2)
