"""Ways in which a session can end before it has answered everything."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import Literal

from refract.errors import EngineError

How = Literal["bug", "engine", "interrupt", "exit", "kill"]


@dataclass(slots=True, kw_only=True)
class Fault:
    """Strikes once, instead of answer number `after` + 1, counted over all sessions of the engine.

    `how`: a bug of the engine (RuntimeError), an EngineError, Ctrl-C, the end of the process without clean-up
    (`os._exit`), or `kill -9`.
    """

    after: int
    how: How = "bug"
    answered: int = 0

    def count(self) -> None:
        """To be called before every answer."""
        if self.answered == self.after:
            self.answered += 1
            self._strike()
        self.answered += 1

    def _strike(self) -> None:
        if self.how == "engine":
            raise EngineError("the fake engine was told to fail")
        if self.how == "interrupt":
            raise KeyboardInterrupt
        if self.how == "exit":
            os._exit(9)
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("the fake engine was told to crash")
