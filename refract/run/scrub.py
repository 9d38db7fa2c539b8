"""Text without what identifies a person or a machine: home folders, user and host names, credentials in URLs."""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from refract.results import Json

_ANY_HOME = re.compile(
    r"(?<![\w.~])(?:/home|/Users|/var/home)/[^/\s\"':,;)]+|\b[A-Za-z]:[\\/]Users[\\/][^\\/\s\"':,;)]+"
)
_USERINFO = re.compile(r"(?<=://)[^/\s@]+@")
_QUERY = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s?#\"']+)[?#][^\s\"']*", re.IGNORECASE)
_SECRET = (
    r"[\w-]*(?:api[-_]?key|access[-_]?key|token|password|passwd|secret|credentials?)"  # "tokens" are counted, no secret
)
_OPTION = re.compile(
    rf"(?P<name>(?<![\w-])(?:--?{_SECRET}(?:=|\s+)|{_SECRET}=|[\"']{_SECRET}[\"']\s*:\s*))"
    r"(?P<value>\"[^\"]*\"|'[^']*'|[^\s\"',}-][^\s\"',}]*)",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]+", re.IGNORECASE)
_KEY = re.compile(r"\b(?:hf_|sk-|ghp_|gho_|github_pat_|glpat-|xox[abp]-)[\w-]{8,}")
_GENERIC = frozenset({"root", "user", "admin", "ubuntu", "debian", "runner", "localhost", "main", "test", "python"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Who:
    """What must not appear: every spelling of the home folder, the user's name, the host's name."""

    homes: tuple[str, ...]
    user: str = ""
    host: str = ""

    @classmethod
    def here(cls) -> Who:
        """This user on this machine."""
        homes = {
            str(Path.home()),
            str(Path.home().resolve()),
            os.environ.get("HOME", ""),
            os.environ.get("USERPROFILE", ""),
        }
        try:
            user = getpass.getuser()
        except (OSError, KeyError, ImportError):
            user = ""
        usable = {home.rstrip("/\\") for home in homes} - {""}
        return cls(
            homes=tuple(sorted(usable, key=lambda home: (-len(home), home))), user=user, host=socket.gethostname()
        )


def scrub(text: str, who: Who | None = None) -> str:
    """`text` with home folders as ~, user and host names as placeholders, and URLs and options without credentials."""
    known = Who.here() if who is None else who
    for home in known.homes:
        text = re.sub(rf"{re.escape(home)}(?![\w.-])", "~", text)
    text = _ANY_HOME.sub("~", text)
    text = _QUERY.sub(r"\1", _USERINFO.sub("", text))
    text = _BEARER.sub(r"\1 <removed>", text)
    text = _KEY.sub("<removed>", _OPTION.sub(r"\g<name><removed>", text))
    for name, placeholder in ((known.user, "<user>"), (known.host, "<host>"), (known.host.split(".")[0], "<host>")):
        text = _without(text, name, placeholder)
    return text


def scrub_json(value: Json, who: Who) -> Json:
    """`value` with every text in it scrubbed."""
    if isinstance(value, str):
        return scrub(value, who)
    if isinstance(value, list):
        return [scrub_json(item, who) for item in value]
    if isinstance(value, Mapping):
        return {scrub(key, who): scrub_json(item, who) for key, item in value.items()}
    return value


def model_name(model: str) -> str:
    """What a report calls the model: the last part of a path, a hub name or URL as it is, scrubbed."""
    path = Path(model).expanduser()
    is_path = path.exists() or model.startswith(("/", "~", ".", "\\")) or re.match(r"[A-Za-z]:[\\/]", model)
    return scrub(re.split(r"[\\/]", str(path.absolute()).rstrip("/\\"))[-1] if is_path else model)


def _without(text: str, name: str, placeholder: str) -> str:
    """Names that are words of their own in any text are replaced in paths and addresses only."""
    if not name:
        return text
    word = re.escape(name)
    if name.lower() in _GENERIC or len(name) < 4:
        return re.sub(rf"(?<=://){word}(?![\w.-])|\b{word}(?=@)|(?<=@){word}\b", placeholder, text)
    return re.sub(rf"(?<![\w-]){word}(?![\w-])", placeholder, text)
