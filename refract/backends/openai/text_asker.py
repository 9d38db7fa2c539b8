"""Generation from a server that gives no token ids: text in and out, tokenised here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from refract.backends._asking import Continued
from refract.backends._completions import only_choice
from refract.backends._http import Client
from refract.backends._listed import Listing
from refract.backends.openai.dialects import Dialect, new_owner
from refract.engine import Tokenizer
from refract.errors import EngineError
from refract.work import TokenIds


@dataclass(frozen=True, slots=True, kw_only=True)
class TextAsker:
    """Fulfils `refract.backends._asking.Asker` as far as text goes: it generates, and forces nothing.

    `begin` is what the server itself puts before a prompt of text; it is left out of what is sent.
    """

    client: Client
    dialect: Dialect
    model: str
    tokenizer: Tokenizer
    begin: TokenIds

    def generate(self, prompt: TokenIds, most: int, count: int) -> Continued:
        """The greedy continuation, tokenised as the model tokenises text, which is not always as it wrote it."""
        sent = prompt[len(self.begin) :] if prompt[: len(self.begin)] == self.begin else prompt
        body: dict[str, Any] = {"model": self.model, "prompt": self.tokenizer.decode(sent), "max_tokens": most}
        answer = self.client.post("/v1/completions", body | self.dialect.body(new_owner(), warm=False))
        choice = only_choice(answer, self.client.name)
        if not isinstance(choice.get("text"), str):
            raise EngineError(f"{self.client.name} answered /v1/completions without a text")
        tokens = self.tokenizer.encode(choice["text"])[:most]
        ended = choice.get("finish_reason") == "stop" and len(tokens) < most
        if ended:
            tokens = (*tokens, min(self.tokenizer.eos_ids))  # which one it was, a text does not say
        return Continued(tokens=tokens, ended=ended, listing=None)

    def force(self, prompt: TokenIds, tokens: TokenIds, count: int) -> Listing:
        """Raises: EngineError, as no text says what a token's probability is."""
        raise EngineError(f"{self.client.name} lists no probable tokens by id")

    def read(self, tokens: TokenIds, start: int, count: int) -> Listing:
        """Raises: EngineError, as `force`."""
        return self.force(tokens[:start], tokens[start:], count)
