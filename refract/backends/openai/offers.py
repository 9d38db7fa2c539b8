"""What a server offers, found by asking it once: token ids, lists of probable tokens, how long they may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from refract.backends._completions import Entry, only_choice, read_entries, token_ids
from refract.backends._http import Client, RefusedError
from refract.backends.openai.dialects import BARE, DIALECTS, UNKNOWN, Dialect, new_owner
from refract.engine import Tokenizer
from refract.errors import ConfigMismatchError, EngineError

_TEXT = "The lighthouse keeper counted 17 ships."
_LISTS = (100, 20, 5)  # lengths to try when the one that is wanted is refused; OpenAI's own limit is 5
_BIAS = 100.0
_CLOSE = 1e-3  # nats between lists of one position asked twice; a bias that is not left out moves them by far more


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a server said of itself and can do. `context` is 0 and `build` "" where it does not say.

    With `ids` it takes and gives token ids; `listed` is how many probable tokens it lists by id (0: none); with `raw`
    these are the model's own probabilities whatever logit_bias says, so that tokens can be forced.
    """

    kind: str
    build: str
    model: str
    context: int = 0
    plain: bool = False  # takes no field beside OpenAI's own
    ids: bool = False
    listed: int = 0
    raw: bool = False
    tokenizer_compared: bool = False

    @property
    def dialect(self) -> Dialect:
        """How it is asked."""
        return BARE if self.plain else DIALECTS.get(self.kind, UNKNOWN)

    @property
    def title(self) -> str:
        """What it is called: the kind of server and its build."""
        return f"{self.dialect.title} {self.build}".strip()

    def facts(self) -> dict[str, str]:
        """The offer as texts, for `from_facts`."""
        return {name: str(value) for name, value in asdict(self).items()}


def from_facts(facts: Mapping[str, str]) -> Offer | None:
    """The offer that `facts` were made of; None when they are of something else."""
    try:
        return Offer(
            kind=facts["kind"],
            build=facts["build"],
            model=facts["model"],
            context=int(facts["context"]),
            plain=facts["plain"] == "True",
            ids=facts["ids"] == "True",
            listed=int(facts["listed"]),
            raw=facts["raw"] == "True",
            tokenizer_compared=facts["tokenizer_compared"] == "True",
        )
    except (LookupError, ValueError):
        return None


def look(client: Client, tokenizer: Tokenizer, *, model: str, wanted: int) -> Offer:
    """The offer of a running server; `model` is the one to ask for ("": the only one), `wanted` the length of lists.

    Raises: EngineError when it is no such server, serves another model, or several and none is named.
    """
    entry = _served(client, model)
    kind = str(entry.get("owned_by", ""))
    compared = _compare_tokenizer(client, tokenizer, str(entry["id"]))
    prober = _Prober(client, tokenizer, str(entry["id"]), DIALECTS.get(kind, UNKNOWN))
    choice = prober.first()
    found = read_entries(choice, client.name) if choice else None
    ids = choice is not None and bool(token_ids(choice, found))
    listed = prober.longest(min(wanted, tokenizer.vocab_size)) if ids and found else 0
    return Offer(
        kind=kind if kind in DIALECTS else "",
        build=prober.fingerprint or _version(client, kind),
        model=str(entry["id"]),
        context=_context(client, entry),
        plain=prober.dialect is BARE,
        ids=ids,
        listed=listed,
        raw=bool(listed) and prober.raw(listed),
        tokenizer_compared=compared,
    )


class _Prober:
    """Asks for a token or two after a short text."""

    def __init__(self, client: Client, tokenizer: Tokenizer, model: str, dialect: Dialect) -> None:
        self.client, self.model, self.dialect = client, model, dialect
        self.prompt = tokenizer.encode(_TEXT, add_special=True)
        self.other = tokenizer.encode(" ")[0]
        self.fingerprint = ""

    def first(self) -> dict[str, Any] | None:
        """The first choice that comes back for a prompt of ids; None where such prompts are refused."""
        for dialect in (self.dialect, BARE):
            self.dialect = dialect
            try:
                answer = self.ask(1)
            except RefusedError as error:
                if error.status >= 500:
                    raise
                continue
            self.fingerprint = str(answer.get("system_fingerprint") or "") if isinstance(answer, dict) else ""
            return only_choice(answer, self.client.name)
        return None

    def ask(self, listed: int, bias: int | None = None) -> Any:
        body = {"model": self.model, "prompt": list(self.prompt), "max_tokens": 1, "logprobs": listed}
        if bias is not None:
            body["logit_bias"] = {str(bias): _BIAS}
        return self.client.post("/v1/completions", body | self.dialect.body(new_owner(), warm=False))

    def entry(self, listed: int, bias: int | None = None) -> Entry | None:
        entries = read_entries(only_choice(self.ask(listed, bias), self.client.name), self.client.name)
        return entries[0] if entries else None

    def longest(self, wanted: int) -> int:
        """The longest list it gives, up to `wanted`."""
        for listed in (wanted, *(length for length in _LISTS if length < wanted)):
            try:
                entry = self.entry(listed)
            except RefusedError:
                continue
            if entry is not None and len(entry.top) >= listed:
                return listed
        return 0

    def raw(self, listed: int) -> bool:
        """Whether a bias chooses the token and leaves the listed probabilities as they are."""
        try:
            own, forced = self.entry(listed), self.entry(listed, self.other)
        except RefusedError:
            return False
        if own is None or forced is None or forced.token != self.other:
            return False
        known = dict(own.top)
        same = [abs(value - known[token]) for token, value in forced.top[:5] if token in known]
        return len(same) == len(forced.top[:5]) and max(same) <= _CLOSE


def _served(client: Client, model: str) -> Mapping[str, Any]:
    """The model's entry in /v1/models."""
    answer = client.get("/v1/models")
    data = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(data, list) or not all(isinstance(entry, dict) and "id" in entry for entry in data):
        raise EngineError(f"{client.name} lists no models at /v1/models", hint="is it an OpenAI-compatible server?")
    named = [entry for entry in data if not model or entry["id"] == model]
    if len(named) != 1:
        ids = ", ".join(str(entry["id"]) for entry in data[:5])
        raise EngineError(
            f"{client.name} serves {len(data)} models ({ids}), one is expected{f': {model}' if model else ''}",
            hint="name it with --engine-arg served_model=ID",
        )
    return dict(named[0])


def _context(client: Client, entry: Mapping[str, Any]) -> int:
    """The longest sequence the server takes: vLLM's and SGLang's max_model_len, llama-server's for one slot."""
    meta = entry.get("meta") if isinstance(entry.get("meta"), dict) else {}
    slot = None
    if entry.get("owned_by") == "llamacpp":
        props = _optional(client, "/props")
        slot = (props.get("default_generation_settings") or {}).get("n_ctx")
    found = entry.get("max_model_len") or slot or (meta or {}).get("n_ctx") or 0
    return found if isinstance(found, int) else 0


def _version(client: Client, kind: str) -> str:
    paths = {"vllm": ("/version",), "sglang": ("/server_info", "/get_server_info")}.get(kind, ())
    return next((str(found["version"]) for path in paths if "version" in (found := _optional(client, path))), "")


def _optional(client: Client, path: str) -> dict[str, Any]:
    """The object at a path that not every server has."""
    try:
        found = client.get(path)
    except EngineError:
        return {}
    return found if isinstance(found, dict) else {}


def _compare_tokenizer(client: Client, tokenizer: Tokenizer, model: str) -> bool:
    """Whether the server's tokenizer could be compared; llama-server reads `content`, vLLM and SGLang `prompt`.

    Raises: ConfigMismatchError when it gives other ids than the model's own.
    """
    body = {"model": model, "content": _TEXT, "prompt": _TEXT, "add_special_tokens": False}
    try:
        found = client.post("/tokenize", body)
    except EngineError:
        return False
    ids = found.get("tokens") if isinstance(found, dict) else None
    if not isinstance(ids, list) or not ids:
        return False
    own = list(tokenizer.encode(_TEXT))
    if ids[-len(own) :] != own:
        raise ConfigMismatchError(
            f"{client.name} tokenises a text as {ids[:4]}…, the tokenizer of --model as {own[:4]}…",
            hint="give as --model the model that the server runs",
        )
    return True
