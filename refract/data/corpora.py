"""The corpora that `refract fetch` knows: what they are, where they are served, which bytes they have to be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One file of an archive: its name in there, and what it has to hold."""

    name: str
    sha256: str
    size_bytes: int

    @property
    def file(self) -> str:
        """What it is called once it is taken out."""
        return self.name.rpartition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchableCorpus:
    """A zip archive that several mirrors serve with the same bytes, and the files in it; `text` is the one to score."""

    name: str
    title: str
    licence: str
    urls: tuple[str, ...]
    sha256: str
    size_bytes: int
    members: tuple[Member, ...]
    text: str


# The mirrors: the one that llama.cpp's scripts/get-wikitext-2.sh names, at a fixed revision, and that of the data set's
# author. The archive and its files have had these bytes wherever they were published since 2016.
_WIKITEXT_2 = FetchableCorpus(
    name="wikitext-2",
    title="WikiText-2, raw: articles of the English Wikipedia, 2016",
    licence="CC BY-SA 3.0",
    urls=(
        "https://huggingface.co/datasets/ggml-org/ci/resolve/927b3642933080f1b0e811e2f916e14c292992f9/wikitext-2-raw-v1.zip",
        "https://wikitext.smerity.com/wikitext-2-raw-v1.zip",
    ),
    sha256="ef7edb566e3e2b2d31b29c1fdb0c89a4cc683597484c3dc2517919c615435a11",
    size_bytes=4_721_645,
    members=(
        Member(
            name="wikitext-2-raw/wiki.train.raw",
            sha256="6707892fa3788b5ab9ed78ab5ff37d9fe825f6011a2ad4fcd6a6d467f0e7da57",
            size_bytes=10_940_747,
        ),
        Member(
            name="wikitext-2-raw/wiki.valid.raw",
            sha256="4cd0f6876d07a413aa911261ff6d363c72d757d47f0fdd6015702014c89cb9c7",
            size_bytes=1_146_846,
        ),
        Member(
            name="wikitext-2-raw/wiki.test.raw",
            sha256="173c87a53759e0201f33e0ccf978e510c2042d7f2cb78229d9a50d79b9e7dd08",
            size_bytes=1_290_590,
        ),
    ),
    text="wiki.test.raw",
)
CORPORA: Mapping[str, FetchableCorpus] = MappingProxyType({known.name: known for known in (_WIKITEXT_2,)})


def corpus_path(cache: Path, name: str) -> Path:
    """Where the text of this name lies once fetched, whether or not it does. Raises KeyError for an unknown name."""
    return cache / "corpora" / name / CORPORA[name].text
