"""Whether a server runs the model that the run is about, as far as it can be known from outside."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from refract.backends._fingerprint import fingerprint
from refract.backends._http import Client, RefusedError
from refract.backends._source import ModelSource, find_model
from refract.backends._tokenizer import HFTokenizer
from refract.backends.sglang.facts import ServerFacts
from refract.errors import EngineError, ModelError

_PROBE = "Zwölf Boxkämpfer\n\n  jagten 1234 quick brown foxes; naïve — ok?"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def check_same_model(
    client: Client, facts: ServerFacts, source: ModelSource, tokenizer: HFTokenizer, cache_dir: Path | None
) -> tuple[str, ...]:
    """What remains unsure about the server's model, for the report; nothing where its files are the same.

    Raises: ModelError when its files, or its tokenizer, are another model's.
    """
    if _is_here(client.url) and Path(facts.model_path).is_dir():
        other = find_model(facts.model_path)
        if fingerprint(other.files, cache_dir) != fingerprint(source.files, cache_dir):
            raise ModelError(
                f"the server runs {other.name}, whose files are not those of {source.name}",
                hint="give --model the folder that the server was started with",
            )
        return ()
    ids = _server_ids(client)
    if ids is not None and ids != list(tokenizer.encode(_PROBE)):
        raise ModelError(
            f"the server's tokenizer gives other ids than that of {source.name}: it runs another model",
            hint="give --model the folder that the server was started with",
        )
    name = Path(facts.model_path).name or "it does not say which"
    return (f"the server runs a model it calls {name}: that its weights are those of --model cannot be checked",)


def _is_here(url: str) -> bool:
    return urlsplit(url).hostname in _LOOPBACK


def _server_ids(client: Client) -> list[int] | None:
    """The server's token ids of a text; None where it has no such service."""
    try:
        answer = client.post("/tokenize", {"model": "any", "prompt": _PROBE, "add_special_tokens": False})
    except (RefusedError, EngineError):
        return None
    found = answer.get("tokens") if isinstance(answer, dict) else None
    return found if isinstance(found, list) else None
