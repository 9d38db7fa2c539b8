"""Corpora from mirrors: whole and verified or not there, going on after a break, and never outside their folder."""

from __future__ import annotations

import hashlib
import io
import os
import random
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from refract.data import download as downloading
from refract.data.corpora import CORPORA, FetchableCorpus, Member, corpus_path
from refract.data.fetch_corpus import fetch_corpus
from refract.errors import SetupError
from tests.data.file_server import FileServer, serving_file

NOWHERE = "http://127.0.0.1:9/tiny-raw.zip"
TEXTS: Mapping[str, bytes] = {
    "tiny-raw/tiny.train.raw": random.Random(1).randbytes(50_000),
    "tiny-raw/tiny.test.raw": b" = Title = \n Some words of an article . \n" * 900,
}


def zipped(members: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return out.getvalue()


def corpus_of(archive: bytes, *urls: str) -> FetchableCorpus:
    """The catalogue's entry for an archive of TEXTS."""
    return FetchableCorpus(
        name="tiny",
        title="Tiny",
        licence="CC0",
        urls=urls,
        sha256=hashlib.sha256(archive).hexdigest(),
        size_bytes=len(archive),
        members=tuple(
            Member(name=name, sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))
            for name, content in TEXTS.items()
        ),
        text="tiny.test.raw",
    )


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(downloading, "CONNECT_S", 5.0)


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serving_file(zipped(TEXTS)) as served:
        yield served


def everything_under(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_every_file_is_there_and_verified(server: FileServer, tmp_path: Path) -> None:
    corpus = corpus_of(server.content, server.url)
    fetched = fetch_corpus(corpus, tmp_path)
    assert fetched.downloaded
    assert fetched.path == tmp_path / "corpora" / "tiny" / "tiny.test.raw"
    assert fetched.path.read_bytes() == TEXTS["tiny-raw/tiny.test.raw"]
    assert everything_under(tmp_path / "corpora" / "tiny") == ["tiny.test.raw", "tiny.train.raw"]
    again = fetch_corpus(corpus, tmp_path)
    assert (again.downloaded, len(server.asked)) == (False, 1)


def test_a_damaged_file_is_fetched_again(server: FileServer, tmp_path: Path) -> None:
    corpus = corpus_of(server.content, server.url)
    path = fetch_corpus(corpus, tmp_path).path
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert fetch_corpus(corpus, tmp_path).downloaded
    assert path.read_bytes() == TEXTS["tiny-raw/tiny.test.raw"]


def test_a_download_that_broke_off_goes_on(server: FileServer, tmp_path: Path) -> None:
    corpus = corpus_of(server.content, server.url)
    server.cut = 20_000
    with pytest.raises(SetupError, match=r"tiny-raw\.zip broke off after \d+%") as caught:
        fetch_corpus(corpus, tmp_path)
    assert "goes on from there" in str(caught.value.hint)
    assert everything_under(tmp_path / "corpora" / "tiny") == [".tiny-raw.zip.part"]
    server.cut = None
    assert fetch_corpus(corpus, tmp_path).downloaded
    assert server.asked == [None, "bytes=16384-"]


@pytest.mark.parametrize("announce", [True, False])
def test_a_server_without_ranges_starts_again(server: FileServer, tmp_path: Path, announce: bool) -> None:
    corpus = corpus_of(server.content, server.url)
    server.cut, server.ranges, server.announce = 20_000, False, announce
    with pytest.raises(SetupError, match="broke off"):
        fetch_corpus(corpus, tmp_path)
    server.cut = None
    assert fetch_corpus(corpus, tmp_path).downloaded


def test_a_partial_file_of_something_else_is_not_kept(server: FileServer, tmp_path: Path) -> None:
    corpus = corpus_of(server.content, server.url)
    folder = tmp_path / "corpora" / "tiny"
    folder.mkdir(parents=True)
    (folder / ".tiny-raw.zip.part").write_bytes(b"x" * 1000)
    with pytest.raises(SetupError, match="not what it should be"):
        fetch_corpus(corpus, tmp_path)
    assert fetch_corpus(corpus, tmp_path).downloaded


def test_the_next_mirror_is_asked_when_one_does_not_answer(server: FileServer, tmp_path: Path) -> None:
    with serving_file(b"gone") as broken:
        broken.status = 404
        corpus = corpus_of(server.content, NOWHERE, broken.url, server.url)
        assert fetch_corpus(corpus, tmp_path).downloaded


def test_without_a_network_it_is_one_line_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="no mirror can be reached") as caught:
        fetch_corpus(corpus_of(zipped(TEXTS), NOWHERE), tmp_path)
    assert caught.value.exit_code == 3
    assert "\n" not in caught.value.message
    assert everything_under(tmp_path) == []


@pytest.mark.parametrize("status", [403, 404, 500, 503])
def test_a_mirror_that_refuses_leaves_nothing(server: FileServer, tmp_path: Path, status: int) -> None:
    server.status = status
    with pytest.raises(SetupError, match="no mirror serves it now"):
        fetch_corpus(corpus_of(server.content, server.url), tmp_path)
    assert everything_under(tmp_path) == []


def test_a_login_page_of_a_proxy_is_not_taken_for_the_file(server: FileServer, tmp_path: Path) -> None:
    corpus = corpus_of(server.content, server.url)
    server.content = b"<html>Please log in</html>"
    with pytest.raises(SetupError, match="no mirror serves it now"):
        fetch_corpus(corpus, tmp_path)
    server.announce = False
    with pytest.raises(SetupError, match=r"broke off|not what it should be"):
        fetch_corpus(corpus, tmp_path)


def test_other_bytes_of_the_same_length_are_refused(server: FileServer, tmp_path: Path) -> None:
    corpus = corpus_of(server.content, server.url)
    server.content = bytes(reversed(server.content))
    with pytest.raises(SetupError, match="is not what it should be"):
        fetch_corpus(corpus, tmp_path)
    assert everything_under(tmp_path) == []


def test_more_bytes_than_expected_are_not_read(server: FileServer, tmp_path: Path) -> None:
    corpus = corpus_of(server.content, server.url)
    server.content, server.announce = server.content + b"x" * 10_000_000, False
    with pytest.raises(SetupError, match="is not what it should be"):
        fetch_corpus(corpus, tmp_path)
    assert everything_under(tmp_path) == []


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"../../escaped": b"x", "/tmp/escaped": b"x", **TEXTS}, None),
        ({"tiny-raw/tiny.train.raw": TEXTS["tiny-raw/tiny.train.raw"]}, "lacks tiny-raw/tiny.test.raw"),
        ({**TEXTS, "tiny-raw/tiny.test.raw": b"other text"}, "holds another tiny-raw/tiny.test.raw"),
        ({**TEXTS, "tiny-raw/tiny.test.raw": b"\0" * 50_000_000}, "holds another tiny-raw/tiny.test.raw"),
        (None, "cannot be unpacked"),
    ],
)
def test_archives_are_never_trusted(tmp_path: Path, members: Mapping[str, bytes] | None, said: str | None) -> None:
    """Names that climb out of the folder, members that are missing, others or huge, and what is no archive."""
    archive = zipped(members) if members else b"PK\x03\x04 no archive" * 99
    cache = tmp_path / "cache"
    with serving_file(archive) as served:
        corpus = corpus_of(archive, served.url)
        if said is None:
            assert fetch_corpus(corpus, cache).downloaded
            assert everything_under(cache / "corpora" / "tiny") == ["tiny.test.raw", "tiny.train.raw"]
        else:
            with pytest.raises(SetupError, match=said):
                fetch_corpus(corpus, cache)
            assert everything_under(cache) == []
    assert {path.name for path in tmp_path.iterdir()} <= {"cache"}


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "corpora").write_text("a file where a folder should be")
    with pytest.raises(SetupError, match="the cache folder cannot be written"):
        fetch_corpus(corpus_of(zipped(TEXTS), NOWHERE), tmp_path)


def test_a_full_disk_is_not_taken_for_a_broken_connection(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(downloading, "_write", full)
    with pytest.raises(SetupError, match="cannot be written: No space left on device"):
        fetch_corpus(corpus_of(server.content, server.url), tmp_path)


def test_every_corpus_that_can_be_fetched_is_pinned() -> None:
    for name, known in CORPORA.items():
        assert known.name == name
        assert all(url.startswith("https://") for url in known.urls)
        assert len({url.rpartition("/")[2] for url in known.urls}) == 1
        assert len(bytes.fromhex(known.sha256)) == 32
        assert all(len(bytes.fromhex(member.sha256)) == 32 for member in known.members)
        assert known.text in {member.file for member in known.members}
        assert corpus_path(Path("cache"), name) == Path("cache/corpora") / name / known.text
    assert replace(CORPORA["wikitext-2"], name="x").text == "wiki.test.raw"
