"""JSON over HTTP for engines that are servers: retried while they start, refused in one line when they misbehave."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import requests

from refract.errors import EngineError, IncompleteError, UsageError

_LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")
_WAIT_S, _LONGEST_WAIT_S = 0.05, 2.0
_BUSY = (429, 503)


class RefusedError(EngineError):
    """The server refused one request (status 4xx or 5xx) and may answer the next. `status` is the HTTP status."""

    def __init__(self, message: str, *, status: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status


@dataclass(slots=True, kw_only=True)
class Client:
    """A server at `url`. `gone` says why it is gone, if it is one of ours; None while it runs.

    A proxy from the environment is not used for this machine's own servers.
    """

    url: str
    name: str = "the server"
    timeout_s: float = 600.0
    patience_s: float = 30.0
    headers: Mapping[str, str] = field(default_factory=dict)
    gone: Callable[[], str | None] = lambda: None
    _session: requests.Session = field(default_factory=requests.Session, repr=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"{self.url!r} is no URL of a server", hint="write it as in http://127.0.0.1:8080")
        self.url = self.url.rstrip("/")
        self._session.trust_env = parts.hostname not in _LOOPBACK
        self._session.headers.update(self.headers)

    def get(self, path: str) -> Any:
        """The JSON at `path`. Raises: as `post`."""
        return self._asked("GET", path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The JSON that answers `body`.

        Connections that fail, and answers that say "busy", are tried again for `patience_s`.

        Raises:
            RefusedError: an HTTP status of 400 and more, with what the server says.
            IncompleteError: the server is not there, ended, or closed the connection in the middle.
            EngineError: the answer is not JSON, or took longer than `timeout_s`.
        """
        return self._asked("POST", path, body)

    def text(self, path: str) -> str:
        """The text at `path`. Raises: as `post`."""
        return self._patient("GET", path, None).text

    def _asked(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        answer = self._patient(method, path, body)
        try:
            return answer.json()
        except requests.exceptions.JSONDecodeError:
            start = " ".join(answer.text[:60].split())
            raise EngineError(
                f"{self.name} answered {path} with something that is not JSON: {start!r}",
                hint="check that the address is the server's own and no proxy's page",
            ) from None

    def _patient(self, method: str, path: str, body: Mapping[str, Any] | None) -> requests.Response:
        until, wait = time.monotonic() + self.patience_s, _WAIT_S
        while True:
            late = time.monotonic() >= until
            try:
                answer = self._session.request(method, self.url + path, json=body, timeout=self.timeout_s)
            except requests.exceptions.Timeout:
                raise EngineError(
                    f"{self.name} did not answer {path} within {self.timeout_s:g} s", hint="look at the server's log"
                ) from None
            except requests.exceptions.ConnectionError as error:
                reason = self.gone()
                if late or reason:
                    raise self._lost(path, reason or _reason(error)) from None
            except requests.exceptions.RequestException as error:
                raise self._lost(path, _reason(error)) from None
            else:
                if answer.status_code not in _BUSY or late:
                    return self._accepted(path, answer)
            time.sleep(wait)
            wait = min(_LONGEST_WAIT_S, 2 * wait)

    def _lost(self, path: str, reason: str) -> IncompleteError:
        return IncompleteError(
            f"{self.name} is gone while answering {path}: {reason}",
            hint="everything answered so far is kept: run the same command again",
        )

    def _accepted(self, path: str, answer: requests.Response) -> requests.Response:
        if answer.status_code < 400:
            return answer
        raise RefusedError(
            f"{self.name} answered {path} with status {answer.status_code}: {_said(answer)}", status=answer.status_code
        )


def _said(answer: requests.Response) -> str:
    """What a refusal says of itself, in the forms of llama-server, vLLM and SGLang."""
    try:
        body = answer.json()
    except requests.exceptions.JSONDecodeError:
        return " ".join(answer.text[:80].split()) or "no reason given"
    error = body.get("error", body) if isinstance(body, dict) else body
    message = error.get("message") or error.get("detail") if isinstance(error, dict) else error
    return " ".join(str(message)[:200].split())


def _reason(error: Exception) -> str:
    text = str(error)
    for sign, words in (
        ("refused", "the connection is refused"),
        ("RemoteDisconnected", "it closed the connection"),
        ("IncompleteRead", "it closed the connection in the middle of an answer"),
        ("reset", "the connection was reset"),
        ("resolve", "its name cannot be resolved"),
    ):
        if sign in text:
            return words
    return type(error).__name__
