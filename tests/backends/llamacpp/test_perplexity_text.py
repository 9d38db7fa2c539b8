"""Text that reads as the wanted token ids, or an error before anything runs."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from refract.backends.llamacpp.perplexity_text import forced_text
from refract.errors import EngineError
from refract.work import Window

BOS = 1


class Words:
    """Runs of letters with at most one space before them, and single other characters; ids as they are met."""

    eos_ids: frozenset[int] = frozenset()
    has_chat_template = False

    def __init__(self, *, bos: bool) -> None:
        self.bos, self.pieces = bos, ["", "<s>"]

    @property
    def vocab_size(self) -> int:
        return len(self.pieces)

    def encode(self, text: str, *, add_special: bool = False) -> tuple[int, ...]:
        ids = [BOS] if add_special and self.bos else []
        for piece in re.findall(r" ?[a-z]+|\n+|.", text):
            if piece not in self.pieces:
                self.pieces.append(piece)
            ids.append(self.pieces.index(piece))
        return tuple(ids)

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.pieces[i] for i in ids)


def windows(tokenizer: Words, *texts: str) -> list[Window]:
    found = [tokenizer.encode(text, add_special=True) for text in texts]
    assert {len(tokens) for tokens in found} == {8}
    return [Window(tokens=tokens, start=5) for tokens in found]


def test_windows_that_can_follow_each_other_do() -> None:
    tokenizer = Words(bos=False)
    texts = (" a b c d e f g h", " i j k l m n o p")
    made = forced_text(windows(tokenizer, *texts), tokenizer)
    assert (made.text, made.chunks) == ("".join(texts), (0, 1))


def test_a_filler_stands_where_the_tool_puts_the_begin_token() -> None:
    tokenizer = Words(bos=True)
    wanted = windows(tokenizer, " a b c d e f g", " i j k l m n o", "s t u v w x y")
    made = forced_text(wanted, tokenizer)
    assert made.chunks == (0, 1, 2)
    assert tokenizer.encode(made.text, add_special=True) == made.tokens
    for i, window in enumerate(wanted):
        assert made.tokens[8 * i + 1 : 8 * i + 8] == window.tokens[1:]


def test_a_seam_that_would_merge_gets_a_chunk_of_filling() -> None:
    tokenizer = Words(bos=False)
    wanted = windows(tokenizer, " a b c d e f g h", "i j k l m n o p")
    made = forced_text(wanted, tokenizer)
    assert made.chunks == (0, None, 1)
    assert (made.tokens[:8], made.tokens[16:]) == (wanted[0].tokens, wanted[1].tokens)
    assert tokenizer.encode(made.text) == made.tokens


@pytest.mark.parametrize("bos", [True, False])
def test_one_window_is_filled_up_to_two_chunks(bos: bool) -> None:
    tokenizer = Words(bos=bos)
    made = forced_text(windows(tokenizer, " a b c d e f g" + " h" * (not bos)), tokenizer)
    assert made.chunks == (0, None)
    assert len(made.tokens) == 16


def test_windows_that_no_text_gives_are_refused() -> None:
    tokenizer = Words(bos=False)
    ids = tokenizer.encode("a b c d e f g h")
    split = Window(tokens=(ids[0], ids[0], *ids[:6]), start=5)  # "aa" reads as one token
    with pytest.raises(EngineError, match="no text gives it these windows") as caught:
        forced_text([split, split], tokenizer)
    assert caught.value.hint


def test_windows_without_the_begin_token_are_refused() -> None:
    tokenizer = Words(bos=True)
    with pytest.raises(EngineError, match="does not begin with the begin-of-sequence token"):
        forced_text([Window(tokens=tokenizer.encode(" a b c d e f g h"), start=5)] * 2, tokenizer)
