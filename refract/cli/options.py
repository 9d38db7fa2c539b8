"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import argparse
import re
from pathlib import Path


def add_cache_dir(parser: argparse._ActionsContainer) -> None:
    """Adds --cache-dir to a parser or a group of one."""
    text = "where models and answers are kept (default: the user's cache folder)"
    parser.add_argument("--cache-dir", type=Path, metavar="DIR", help=text)


def output_file(text: str) -> Path:
    """The path of a file to write."""
    if text.endswith(("/", "\\")):
        raise argparse.ArgumentTypeError(f"expected a file, found the folder {text}")
    return Path(text)


def positive(text: str) -> int:
    """A whole number of at least 1."""
    return _whole(text, 1)


def not_negative(text: str) -> int:
    """A whole number of at least 0."""
    return _whole(text, 0)


def at_least_two(text: str) -> int:
    """A whole number of at least 2."""
    return _whole(text, 2)


def _whole(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least {least}, found {text!r}")
    return number


def size_bytes(text: str) -> int:
    """A size such as 800, 500M, 2G or 1.5GiB, in bytes; units are powers of 1024."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if found is None:
        raise argparse.ArgumentTypeError(f"expected a size such as 500M or 2G, found {text!r}")
    return int(float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " "))


def whole_numbers(text: str) -> tuple[int, ...]:
    """Comma-separated whole numbers of at least 1."""
    return tuple(_whole(part.strip(), 1) for part in text.split(","))


def fractions(text: str) -> tuple[float, ...]:
    """Comma-separated numbers from 0 to 1."""
    return tuple(_between(part.strip(), 0.0, 1.0) for part in text.split(","))


def score(text: str) -> float:
    """A score: 0 to 100."""
    return _between(text, 0.0, 100.0)


def margin(text: str) -> float:
    """A loss in points: more than 0, at most 100."""
    number = _between(text, 0.0, 100.0)
    if number == 0.0:
        raise argparse.ArgumentTypeError("expected more than 0: an interval always holds some loss")
    return number


def nats(text: str) -> float:
    """A divergence in nats."""
    return _between(text, 0.0, 1e6)


def _between(text: str, low: float, high: float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = low - 1.0
    if not low <= number <= high:
        raise argparse.ArgumentTypeError(f"expected a number from {low:g} to {high:g}, found {text!r}")
    return number


def key_value(text: str) -> tuple[str, str]:
    """A pair written key=value."""
    key, equals, value = text.partition("=")
    if not (key.strip() and equals):
        raise argparse.ArgumentTypeError(f"expected key=value, found {text!r}")
    return key.strip(), value.strip()
