from __future__ import annotations

import re
from importlib.resources import files

import pytest

CSS = files("refract.report").joinpath("templates", "report.css").read_text(encoding="utf-8")
TEXT_ON = {
    "ink": ("paper", "panel", "tint", "h0", "h1", "h2", "h3", "h4"),
    "soft": ("paper", "panel"),
    "accent": ("paper",),
    "bad": ("paper",),
    "fair": ("paper",),
}


def palettes() -> list[dict[str, str]]:
    """The colours of every rule that sets them: light, dark by preference, dark by choice."""
    found = [
        dict(re.findall(r"--([a-z0-9]+):(#[0-9a-f]{6})", rule)) for rule in re.findall(r"\{([^{}]*--paper:[^{}]*)", CSS)
    ]
    assert len(found) == 3
    return found


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255.0 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("palette", palettes(), ids=["light", "dark", "dark by choice"])
def test_text_has_the_contrast_wcag_aa_asks_for(palette: dict[str, str]) -> None:
    for text, grounds in TEXT_ON.items():
        for ground in grounds:
            light, dark = sorted((luminance(palette[text]), luminance(palette[ground])), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (text, ground)


def test_both_ways_to_dark_are_the_same() -> None:
    _, preferred, chosen = palettes()
    assert preferred == chosen
