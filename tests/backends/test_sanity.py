"""The gate against engines that compute something else than the model."""

from __future__ import annotations

from math import log

import numpy as np
import pytest

from refract.backends._sanity import refuse_garbage, sanity_window
from refract.errors import EngineError
from refract.testing import FakeTokenizer

VOCAB = 49152


def test_a_model_that_guesses_well_or_badly_passes() -> None:
    for nats in (0.1, 3.0, 5.3):
        refuse_garbage(np.full(12, -nats, np.float32), VOCAB, "vLLM", "auto")


@pytest.mark.parametrize("logprobs", [-log(74_000.0), -7.5, -log(VOCAB) / 2 - 1e-3, float("nan"), float("-inf")])
def test_what_is_worse_than_a_guess_is_no_model(logprobs: float) -> None:
    with pytest.raises(EngineError, match="vLLM returned garbage under int8_per_token_head") as caught:
        refuse_garbage(np.full(12, logprobs, np.float32), VOCAB, "vLLM", "int8_per_token_head")
    assert caught.value.hint is not None


def test_the_sentence_is_scored_at_its_end() -> None:
    window = sanity_window(FakeTokenizer())
    assert window.positions == 12
