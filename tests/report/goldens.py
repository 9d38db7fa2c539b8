"""Golden files: what a report looked like when somebody last looked at it. REFRACT_GOLDEN=write renews them."""

from __future__ import annotations

import os
from pathlib import Path


def check(name: str, text: str) -> None:
    """Asserts that `text` is the golden file's; writes it instead when REFRACT_GOLDEN=write."""
    path = Path(__file__).parent / "golden" / name
    if os.environ.get("REFRACT_GOLDEN") == "write":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{name} changed; if it is meant to, run with REFRACT_GOLDEN=write"
