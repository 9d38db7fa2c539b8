"""The corpus that the kld axis scores: the bundled one, a text file, or a folder of text files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from refract.data.textfile import is_folder, label, read_text
from refract.errors import CorpusError

BUNDLED_NAME = "refract-v1"
LIMIT_MIB = 512

_BUNDLED = Path(__file__).resolve().parent / "corpus"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One category's part of a corpus: characters `start` to `end` (exclusive) of its text."""

    category: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """A text and its sections, which cover it in order and without gaps.

    `sha256` is of the section names and the normalised text: neither the path nor the line ends of the files count.
    """

    name: str
    sha256: str
    text: str
    sections: tuple[Section, ...]


def load_corpus(path: Path | None = None) -> Corpus:
    """The corpus at `path`, or the bundled one: UTF-8, without byte-order mark, CRLF turned into LF.

    A file is one section without a category; a folder is one section for each of its .txt files, in the order of
    their names, with the file's stem as category. Whether it is long enough is the business of whoever cuts windows.

    Raises:
        CorpusError: missing, unreadable, no .txt file in the folder, empty, binary, not UTF-8, above 512 MiB.
    """
    if path is None:
        return _corpus(BUNDLED_NAME, _read_folder(_BUNDLED))
    name = label(path)
    return _corpus(name, _read_folder(path) if is_folder(path) else [("", _read_file(path))])


def _read_file(path: Path) -> str:
    text = read_text(path, CorpusError, kind="text file as corpus", limit_mib=LIMIT_MIB)
    return text.replace("\r\n", "\n")


def _read_folder(folder: Path) -> list[tuple[str, str]]:
    name = label(folder)
    try:
        files = sorted(f for f in folder.iterdir() if f.suffix.lower() == ".txt" and not f.name.startswith("."))
    except PermissionError:
        raise CorpusError(f"{name} may not be read by this user", hint=f"allow reading it: chmod +rx {name}") from None
    if not files:
        raise CorpusError(f"{name} holds no .txt file, expected one for each category", hint="name a text file instead")
    size_mib = sum(f.stat().st_size for f in files if f.is_file()) // (1024 * 1024)
    if size_mib > LIMIT_MIB:
        raise CorpusError(
            f"{name} holds {size_mib} MiB of text, expected at most {LIMIT_MIB} MiB",
            hint="leave some files out; a run reads far less than that",
        )
    return [(f.stem, _read_file(f)) for f in files]


def _corpus(name: str, parts: Sequence[tuple[str, str]]) -> Corpus:
    digest = hashlib.sha256()
    sections: list[Section] = []
    start = 0
    for category, text in parts:
        digest.update(json.dumps([category, len(text)]).encode())
        digest.update(text.encode())
        sections.append(Section(category=category, start=start, end=start + len(text)))
        start += len(text)
    whole = "".join(text for _, text in parts)
    return Corpus(name=name, sha256=digest.hexdigest(), text=whole, sections=tuple(sections))
