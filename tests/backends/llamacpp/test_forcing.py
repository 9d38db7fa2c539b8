"""Generation and forcing against a scripted server that behaves as llama-server does, its limits included."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from refract.backends._http import RefusedError
from refract.backends.llamacpp.forcing import Asker
from refract.errors import EngineError, IncompleteError
from refract.work import TokenIds

VOCAB, EOS, CONTINUATION, PLAIN = 12, 0, 9, 1
ASKER = Asker(vocab_size=VOCAB, eos_ids=frozenset({EOS}), plain=PLAIN)


def row(sofar: TokenIds) -> np.ndarray:
    """Log-probabilities after a prefix: any, and always the same."""
    values = np.random.default_rng(sum((i + 1) * t for i, t in enumerate(sofar))).normal(0, 2, VOCAB)
    return values - np.log(np.exp(values).sum())


class Script:
    """`/completion` of a model whose text token 9 is half a character; `asked` are the bodies."""

    def __init__(self, answers: tuple[int, ...] = (), *, whole_eos: bool = False) -> None:
        self.asked: list[Mapping[str, Any]] = []
        self.answers, self.whole_eos = answers, whole_eos

    def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        self.asked.append(body)
        prompt = tuple(body["prompt"])
        if "n_prompt_probs" in body:
            return {
                "prompt_probabilities": [
                    _position(prompt, i, body) for i in range(body["prompt_probs_from"], len(prompt))
                ]
            }
        forced = [int(part) for part in body.get("grammar", "").replace("<[", " ").replace("]>", " ").split()[2:]]
        if CONTINUATION in forced:
            raise RefusedError("status 500: empty grammar stack", status=500)
        wanted = forced or list(self.answers) or [int(row(prompt).argmax())]
        if "logit_bias" in body:
            wanted = [PLAIN]
        tokens, entries, stop = [], [], "limit"
        for token in wanted[: body["n_predict"]]:
            values, count = row((*prompt, *tokens)), body["n_probs"]
            top = [{"id": int(i), "logprob": float(values[i])} for i in np.argsort(-values)[:count]]
            entry = {"id": token, "logprob": float(values[token]), "top_logprobs": top}
            if token == EOS:
                stop = "eos"
                entries += [entry] if self.whole_eos else []
                break
            if token != CONTINUATION:
                entries.append(entry)
            tokens.append(token)
        return {"tokens": tokens, "stop_type": stop, "completion_probabilities": entries if body["n_probs"] else []}


def _position(prompt: TokenIds, index: int, body: Mapping[str, Any]) -> dict[str, Any]:
    """What a patched server lists at one position of the prompt."""
    values = row(prompt[:index])
    order = np.argsort(-values)[: body["n_prompt_probs"]]
    lists = {"ids": [int(i) for i in order], "logprobs": [float(values[i]) for i in order]}
    return {"position": index, "id": prompt[index], "logprob": float(values[prompt[index]]), **lists}


def check(found: Any, prompt: TokenIds, tokens: TokenIds) -> None:
    """The listing holds what the model says at each of the tokens."""
    assert found is not None
    assert found.tokens == tokens
    for index, token in enumerate(tokens):
        values = row((*prompt, *tokens[:index]))
        assert found.logprobs[index] == pytest.approx(values[token], abs=1e-6)
        assert found.listed.ids[index, 0] == values.argmax()


def test_a_free_run_takes_one_request() -> None:
    server = Script((4, 5, 6))
    found = ASKER.generate(server, (2, 3), 3, 4)  # type: ignore[arg-type]  # a stand-in
    assert (found.tokens, found.ended) == ((4, 5, 6), False)
    check(found.listing, (2, 3), (4, 5, 6))
    (body,) = server.asked
    assert (body["cache_prompt"], body["temperature"], body["samplers"]) == (False, 0, ["temperature"])


def test_without_lists_none_are_asked_for() -> None:
    server = Script((4, 5))
    assert ASKER.generate(server, (2,), 2, 0).listing is None  # type: ignore[arg-type]
    assert server.asked[0]["n_probs"] == 0


@pytest.mark.parametrize("whole", [True, False])
def test_the_end_of_the_sequence_is_a_token_also_where_the_server_leaves_it_out(
    whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = next((2, 3, n) for n in range(200) if row((2, 3, n, 4)).argmax() == EOS)
    found = ASKER.generate(Script((4, EOS), whole_eos=whole), prompt, 8, 3)  # type: ignore[arg-type]
    assert (found.tokens, found.ended) == ((4, EOS), True)
    check(found.listing, prompt, (4, EOS))


def test_an_end_that_is_not_the_most_probable_token_is_an_error() -> None:
    prompt = next((2, n) for n in range(200) if row((2, n, 4)).argmax() != EOS)
    with pytest.raises(EngineError, match="ended a sequence where its most probable token is"):
        ASKER.generate(Script((4, EOS)), prompt, 8, 0)  # type: ignore[arg-type]


def test_a_run_that_stops_for_no_reason_is_no_answer() -> None:
    with pytest.raises(EngineError, match=r"stopped \(limit\) after 2 of 5 tokens"):
        ASKER.generate(Script((4, 5)), (2,), 5, 0)  # type: ignore[arg-type]


def test_dropped_entries_are_asked_for_step_by_step() -> None:
    server = Script((4, CONTINUATION, 5))
    found = ASKER.generate(server, (2,), 3, 4)  # type: ignore[arg-type]
    check(found.listing, (2,), (4, CONTINUATION, 5))
    assert server.asked[1]["cache_prompt"] is False


def test_forcing_takes_one_request_where_a_grammar_can() -> None:
    server = Script()
    check(ASKER.force(server, (2,), (7, 8, 3), 4), (2,), (7, 8, 3))  # type: ignore[arg-type]
    assert [body.get("grammar") for body in server.asked] == ["root ::= <[7]> <[8]> <[3]>"]


@pytest.mark.parametrize("tokens", [(7, EOS, 3), (7, CONTINUATION, 3), (EOS,)])
def test_what_no_grammar_can_force_is_forced_step_by_step(tokens: TokenIds) -> None:
    server = Script()
    check(ASKER.force(server, (2, 5), tokens, VOCAB), (2, 5), tokens)  # type: ignore[arg-type]
    steps = [body for body in server.asked if "logit_bias" in body]
    assert [len(body["prompt"]) for body in steps] == [2 + i for i in range(len(tokens))]
    assert [body["cache_prompt"] for body in steps] == [i > 0 for i in range(len(tokens))]


def test_a_token_outside_the_list_is_looked_up_in_the_whole_vocabulary() -> None:
    server = Script()
    least = int(row((2,)).argmin())
    tokens = (least, CONTINUATION)
    found = ASKER.force(server, (2,), tokens, 2)  # type: ignore[arg-type]
    check(found, (2,), tokens)
    assert found.listed.ids.shape == (2, 2)
    assert VOCAB in [body["n_probs"] for body in server.asked]


def test_a_server_that_is_gone_is_no_reason_to_go_on() -> None:
    class Gone:
        def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
            raise IncompleteError("llama-server is gone")

    with pytest.raises(IncompleteError):
        ASKER.force(Gone(), (2,), (3,), 2)  # type: ignore[arg-type]


def test_a_prompt_is_read_in_one_request_where_the_server_lists_it() -> None:
    server, tokens = Script(), (2, 3, 4, 5, 6)
    found = ASKER.read(server, tokens, 2, 5)  # type: ignore[arg-type]
    check(found, (2, 3), (4, 5, 6))
    assert len(server.asked) == 1
    forced = ASKER.force(server, (2, 3), (4, 5, 6), 5)  # type: ignore[arg-type]
    assert np.array_equal(found.listed.ids, forced.listed.ids)


class Deaf(Script):
    """A server that ignores what it does not know, as llama-server does."""

    def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return super().complete({k: v for k, v in body.items() if k != "n_prompt_probs"})


class Other(Script):
    """One that lists another prompt."""

    def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return super().complete({**body, "prompt": [t + 1 for t in body["prompt"]]})


@pytest.mark.parametrize(
    ("server", "said"),
    [(Deaf(), "listed 0 positions of a prompt, expected 2"), (Other(), r"listed the prompt \(5, 6\)…")],
)
def test_a_prompt_that_is_not_listed_is_an_error(server: Script, said: str) -> None:
    with pytest.raises(EngineError, match=said):
        ASKER.read(server, (2, 3, 4, 5), 2, 4)  # type: ignore[arg-type]
