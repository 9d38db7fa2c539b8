"""For the tests of this program and of other backends: an engine without a model, and what every engine must pass.

`FakeEngine` needs numpy alone; `EngineContract` is imported on first use because it needs pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from refract.testing.behaviour import Behaviour
from refract.testing.engine import FakeEngine
from refract.testing.faults import Fault
from refract.testing.model import FakeModel
from refract.testing.session import FakeSession
from refract.testing.tokenizer import FakeTokenizer

if TYPE_CHECKING:
    from refract.testing.contract import EngineContract

__all__ = ["Behaviour", "EngineContract", "FakeEngine", "FakeModel", "FakeSession", "FakeTokenizer", "Fault"]


def __getattr__(name: str) -> object:
    if name != "EngineContract":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from refract.testing.contract import EngineContract

    return EngineContract
