"""Every error a user can meet, with its exit code and one thing to do.

The tree follows the exit codes of the command line: 2 usage, 3 setup, 4 engine, 5 incomplete. A message says what was
found and what was expected; the hint says what to do. Neither holds a newline, so that an error is one line and a hint.
"""

from __future__ import annotations


class RefractError(Exception):
    """Base of all errors that are the user's or the engine's, never a bug of this program."""

    exit_code = 1
    usual_hint: str | None = None  # shown where an error has no hint of its own

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(" ".join(message.split()))
        self.hint = None if hint is None else " ".join(hint.split())

    @property
    def message(self) -> str:
        """One line: what was found and what was expected."""
        return str(self.args[0])


class UsageError(RefractError):
    """The command or one of its inputs cannot mean anything (exit 2)."""

    exit_code = 2


class KVSyntaxError(UsageError):
    """A KV configuration that does not parse or names something unknown."""


class KVUnsupportedError(UsageError):
    """A well-formed KV configuration that this engine, model or layer cannot carry out."""


class PromptsError(UsageError):
    """A prompt file that cannot be read; the message names the file and the line."""


class CorpusError(UsageError):
    """A corpus that is missing, not text, or too short for the windows asked for."""


class ReportError(UsageError):
    """A report file that is truncated, of another schema, or not comparable."""


class SetupError(RefractError):
    """Something this machine lacks: a package, a binary, a model, room on the disk (exit 3)."""

    exit_code = 3


class MissingPackageError(SetupError):
    """An engine's Python package is not installed."""


class ModelError(SetupError):
    """A model that is missing, unreadable, damaged, or of an unsupported architecture."""


class StoreError(SetupError):
    """The answer store is damaged, locked or cannot be written; the message names the entry or file."""


class EngineError(RefractError):
    """The engine failed or did something else than it was asked (exit 4)."""

    exit_code = 4
    usual_hint = "what was answered is kept, run it again; if it ends the same way, see what refract selftest says"


class ConfigMismatchError(EngineError):
    """The engine's effective KV configuration is not the requested one."""


class FloorError(EngineError):
    """The reference does not agree with itself well enough for any score to mean something."""


class IncompleteError(RefractError):
    """The run stopped before every answer was known; what was answered is kept (exit 5)."""

    exit_code = 5
