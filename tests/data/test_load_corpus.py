"""Corpora: the bundled one, a file, a folder, and every refusal."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refract.data import corpus as corpus_module
from refract.data.corpus import Corpus, Section, load_corpus
from refract.errors import CorpusError

FOLDER = Path(corpus_module.__file__).parent / "corpus"
CATEGORIES = ["code", "dialogue", "encyclopedic", "multilingual", "narrative", "structured"]


@pytest.fixture(scope="module")
def bundled() -> Corpus:
    return load_corpus()


def test_bundled_sections(bundled: Corpus) -> None:
    assert bundled.name == "refract-v1"
    assert [s.category for s in bundled.sections] == CATEGORIES
    assert bundled.sections[0].start == 0
    assert bundled.sections[-1].end == len(bundled.text)
    assert all(a.end == b.start for a, b in zip(bundled.sections, bundled.sections[1:], strict=False))
    sizes = [len(bundled.text[s.start : s.end].encode()) for s in bundled.sections]
    assert min(sizes) >= 180_000
    assert 1_500_000 <= sum(sizes) <= 2_500_000


def test_bundled_files_are_clean(bundled: Corpus) -> None:
    for category in CATEGORIES:
        raw = (FOLDER / f"{category}.txt").read_bytes()
        assert b"\r" not in raw
        assert raw.endswith(b"\n")
    assert not re.search(r"[\0\ufeff\ufffd]|(?i:project gutenberg)|/home/", bundled.text)


def test_bundled_scripts_of_the_world(bundled: Corpus) -> None:
    section = next(s for s in bundled.sections if s.category == "multilingual")
    text = bundled.text[section.start : section.end]
    assert [letter for letter in "ñßжαعהह中の한ไአğł" if letter not in text] == []


def test_bundled_paragraphs_are_not_repeated(bundled: Corpus) -> None:
    for section in bundled.sections:
        paragraphs = [p for p in bundled.text[section.start : section.end].split("\n\n") if len(p) > 200]
        assert len(set(paragraphs)) >= 0.97 * len(paragraphs), section.category


def test_sources_name_every_file() -> None:
    sources = (FOLDER / "SOURCES.md").read_text(encoding="utf-8")
    assert all(f"`{category}.txt`" in sources for category in CATEGORIES)
    assert "://" not in sources


def test_bundled_corpus_loads_fast() -> None:
    def seconds() -> float:
        began = time.perf_counter()
        load_corpus()
        return time.perf_counter() - began

    assert min(seconds() for _ in range(5)) < 0.05


def test_a_file_is_one_section(tmp_path: Path) -> None:
    file = tmp_path / "wiki.txt"
    file.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n\r\nthree \n")
    loaded = load_corpus(file)
    assert loaded.name == "wiki.txt"
    assert loaded.text == "one\ntwo\n\nthree \n"
    assert loaded.sections == (Section(category="", start=0, end=16),)


def test_a_folder_is_one_section_for_each_text_file(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_bytes("ü\n".encode())
    (tmp_path / "a.TXT").write_bytes(b"\xef\xbb\xbfx\r\n")
    (tmp_path / "README.md").write_bytes(b"no part of it")
    (tmp_path / "._b.txt").write_bytes(b"\0\1")
    loaded = load_corpus(tmp_path)
    assert loaded.name == tmp_path.name
    assert loaded.text == "x\nü\n"
    assert loaded.sections == (Section(category="a", start=0, end=2), Section(category="b", start=2, end=4))


def test_the_current_folder_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_bytes(b"x")
    monkeypatch.chdir(tmp_path)
    assert load_corpus(Path()).name == tmp_path.name


def test_sha256_ignores_path_and_line_ends_but_nothing_else(tmp_path: Path) -> None:
    def digest(name: str, raw: bytes) -> str:
        (tmp_path / name).write_bytes(raw)
        return load_corpus(tmp_path / name).sha256

    first = digest("one.txt", b"a\nb\n")
    assert re.fullmatch("[0-9a-f]{64}", first)
    assert first == digest("two.txt", b"\xef\xbb\xbfa\r\nb\r\n")
    assert first != digest("three.txt", b"a\nb")


def test_sha256_depends_on_the_sections(tmp_path: Path) -> None:
    digests: set[str] = set()
    for names in (("a", "b"), ("a", "c")):
        for texts in (("x", "yz"), ("xy", "z")):
            folder = tmp_path / "-".join(names + texts)
            folder.mkdir()
            for name, text in zip(names, texts, strict=True):
                (folder / f"{name}.txt").write_text(text, encoding="utf-8")
            digests.add(load_corpus(folder).sha256)
    assert len(digests) == 4


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), min_size=1))
def test_any_text_is_kept(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = tmp_path_factory.mktemp("kept") / "t.txt"
    file.write_bytes(("x" + text).encode())
    assert load_corpus(file).text == "x" + text


REFUSED: dict[str, tuple[bytes, str, str]] = {
    "empty": (b"", "c.txt is empty", "path"),
    "blank": (b"\n \r\n", "c.txt is empty", "path"),
    "binary": (b"PK\x03\x04\0\0", "c.txt is binary .NUL at byte 4., expected a text file", "unpacked"),
    "latin-1": ("eins\nzwei\ngrün".encode("latin-1"), "line 3: byte 12 .0xfc. is not UTF-8", "iconv"),
    "after a byte-order mark": (b"\xef\xbb\xbfab\xff", "line 1: byte 5 .0xff. is not UTF-8", "iconv"),
    "surrogate in UTF-8": (b"ab\xed\xa0\x80", "line 1: byte 2 .0xed. is not UTF-8", "iconv"),
    "UTF-16": ("text".encode("utf-16"), "is UTF-16", "UTF-8"),
}


@pytest.mark.parametrize(("raw", "message", "hint"), REFUSED.values(), ids=REFUSED.keys())
@pytest.mark.parametrize("as_folder", [False, True])
def test_refusals(tmp_path: Path, raw: bytes, message: str, hint: str, as_folder: bool) -> None:
    (tmp_path / "c.txt").write_bytes(raw)
    with pytest.raises(CorpusError, match=message) as caught:
        load_corpus(tmp_path if as_folder else tmp_path / "c.txt")
    assert hint in (caught.value.hint or "")
    assert str(tmp_path) not in caught.value.message


def test_missing_and_without_text_files(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"none\.txt does not exist"):
        load_corpus(tmp_path / "none.txt")
    (tmp_path / "notes.md").write_bytes(b"x")
    with pytest.raises(CorpusError, match=r"holds no \.txt file"):
        load_corpus(tmp_path)


def test_too_large(tmp_path: Path) -> None:
    """A sparse file: nothing of it is written or read."""
    for name in ("a.txt", "b.txt"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(300 * 1024 * 1024)
    with pytest.raises(CorpusError, match="holds 600 MiB of text, expected at most 512 MiB"):
        load_corpus(tmp_path)
    with (tmp_path / "a.txt").open("wb") as file:
        file.truncate(513 * 1024 * 1024)
    with pytest.raises(CorpusError, match=r"a\.txt has 513 MiB, expected .* at most 512 MiB") as caught:
        load_corpus(tmp_path / "a.txt")
    assert caught.value.hint


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> bytes:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "a.txt").write_bytes(b"x")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", denied)
        with pytest.raises(CorpusError, match=r"a\.txt may not be read"):
            load_corpus(tmp_path / "a.txt")
    monkeypatch.setattr(Path, "iterdir", denied)
    with pytest.raises(CorpusError, match="may not be read"):
        load_corpus(tmp_path)


def test_a_text_of_ten_bytes_loads(tmp_path: Path) -> None:
    """Whether it is long enough is known only to the axis, which cuts windows of tokens."""
    (tmp_path / "a.txt").write_bytes(b"0123456789")
    assert len(load_corpus(tmp_path / "a.txt").text) == 10
