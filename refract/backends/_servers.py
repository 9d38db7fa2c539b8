"""Running servers that others started: which one answers for which side of a run, and never one for both."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from refract.atomic import write_atomically
from refract.backends._http import Client
from refract.errors import ConfigMismatchError, IncompleteError, KVUnsupportedError, RefractError, UsageError
from refract.kv import KVConfig

Role = Literal["reference", "candidate"]

_THIS_MACHINE = ("localhost", "::1", "0.0.0.0")
_PORTS = {"http": 80, "https": 443}
_NO_URL = "write it as in http://127.0.0.1:8000"
_FACTS_VERSION = 1
_KEY_VARIABLE = "REFRACT_API_KEY"


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The addresses of a run's servers, "" where there is none.

    With `shared` one address serves both sides in turn: the reference first, and when it is answered the candidate.
    """

    reference: str
    candidate: str
    shared: bool = False

    def of(self, role: Role) -> str:
        """The address of this side's server."""
        return self.reference if role == "reference" else self.candidate

    @property
    def every(self) -> tuple[str, ...]:
        """Each address once."""
        return tuple(dict.fromkeys(filter(None, (self.reference, self.candidate))))


def normal_url(url: str) -> str:
    """One spelling of a server's address, without the path of its API. Raises: UsageError when it is no address."""
    try:
        parts = urlsplit(url.strip())
        host, port = (parts.hostname or "").lower(), parts.port
    except ValueError as error:
        raise UsageError(f"{url!r} is no URL of a server: {error}", hint=_NO_URL) from None
    if parts.scheme.lower() not in _PORTS or not host:
        raise UsageError(f"{url!r} is no URL of a server", hint=_NO_URL)
    scheme = parts.scheme.lower()
    name = "127.0.0.1" if host in _THIS_MACHINE else f"[{host}]" if ":" in host else host
    user = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return f"{scheme}://{user}{name}:{port or _PORTS[scheme]}{path}"


def shown(url: str) -> str:
    """The address without what may be secret in it, for messages."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def client_of(url: str, name: str, *, timeout_s: float, patience_s: float) -> Client:
    """A client of the server at `url`, `name` in messages; it sends the key in REFRACT_API_KEY where there is one."""
    key = os.environ.get(_KEY_VARIABLE)
    return Client(
        url=url,
        name=f"{name} at {shown(url)}",
        timeout_s=timeout_s,
        patience_s=patience_s,
        headers={"Authorization": f"Bearer {key}"} if key else {},
    )


def read_places(options: Mapping[str, str]) -> Places | None:
    """Where the options `url`, `reference_url` and `candidate_url` say that the servers are; None without any.

    Raises: UsageError for one server as both sides, and for `url` beside the others.
    """
    names = ("url", "reference_url", "candidate_url")
    url, reference, candidate = (normal_url(text) if (text := options.get(name, "")) else "" for name in names)
    if url and (reference or candidate):
        raise UsageError(
            "--url is for one server that is both sides in turn, and another URL is given too",
            hint="give --reference-url and --candidate-url, or --url alone",
        )
    if url:
        return Places(reference=url, candidate=url, shared=True)
    if reference and reference == candidate:
        raise one_server(f"--reference-url and --candidate-url are both {shown(reference)}")
    return Places(reference=reference, candidate=candidate) if reference or candidate else None


def one_server(how: str) -> UsageError:
    """The refusal of one server for both sides, which would score 100 on everything whatever its cache."""
    return UsageError(
        f"one server cannot be both the reference and the candidate: {how}",
        hint="start a second server with the candidate's KV types and give its address as --candidate-url",
    )


def role_of(kv: KVConfig, options: Mapping[str, str]) -> Role:
    """Which side `kv` is, by the options `reference_kv` and `candidate_kv` (several joined by ";").

    Without them the reference is what loses nothing.

    Raises: KVUnsupportedError for a configuration that is neither, which no server of the run can be.
    """
    named, others = options.get("reference_kv", ""), options.get("candidate_kv", "")
    if not named:
        return "reference" if kv.is_reference_like else "candidate"
    if str(kv) == named:
        return "reference"
    if others and str(kv) not in others.split(";"):
        raise KVUnsupportedError(
            f"{kv} has no server: those of this run are for {named} and {others.replace(';', ' and ')}",
            hint="measure it in a run of its own, with its own server",
        )
    return "candidate"


def absent(engine: str, role: Role, start: str) -> IncompleteError:
    """No server of this side is known: what to start, and what to say next. `start` is how it is started."""
    return IncompleteError(
        f"the answers of the {role} are missing, and no {engine} server of it is known",
        hint=f"start {start}, and give its address as --{role}-url; what is answered is kept",
    )


def other_kv(engine: str, url: str, *, shared: bool, asked: str, found: str, start: str) -> RefractError:
    """The server keeps another KV cache than asked: with one address for both sides that is the turn of the next."""
    message = f"the {engine} server at {shown(url)} keeps {found}, and {asked} is asked for"
    if shared:
        hint = f"what is answered is kept: stop it, start {start} at the same address, then run the same command again"
        return IncompleteError(message, hint=hint)
    return ConfigMismatchError(message, hint=f"start {start} at this address, or give that server's address")


def remember(cache_dir: Path | None, key: str, facts: Mapping[str, str]) -> None:
    """Keeps what a server said of itself, so that its answers are found when it is gone; a full disk is no error."""
    if cache_dir is not None:
        with suppress(OSError):
            content = json.dumps({"version": _FACTS_VERSION, "key": key, "facts": dict(facts)})
            write_atomically(_facts_file(cache_dir, key), content.encode())


def recall(cache_dir: Path | None, key: str) -> dict[str, str] | None:
    """What was remembered under `key` last; None when nothing was, or it cannot be read."""
    if cache_dir is None:
        return None
    try:
        content = json.loads(_facts_file(cache_dir, key).read_text("utf-8"))
        if content["version"] != _FACTS_VERSION or content["key"] != key:
            return None
        return {str(name): str(value) for name, value in content["facts"].items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def _facts_file(cache_dir: Path, key: str) -> Path:
    return cache_dir / "servers" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
