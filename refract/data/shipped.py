"""Where the folders that live beside the package in a checkout, and inside it in a wheel, are found."""

from __future__ import annotations

from pathlib import Path

from refract.errors import SetupError

_PACKAGE = Path(__file__).resolve().parents[1]


def shipped(folder: str, *, package: Path = _PACKAGE) -> Path:
    """The folder `prompts`, `llama-cpp-patches`, …: of the installed wheel if there is one, else of the checkout.

    Raises:
        SetupError: this installation has neither.
    """
    for place in (package / "_shipped" / folder, package.parent / folder):
        if place.is_dir():
            return place
    raise SetupError(
        f"this installation of refract lacks its folder {folder}",
        hint="install the package again; in a checkout, restore the folder from git",
    )
