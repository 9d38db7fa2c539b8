"""`fetch` and `score --fetch`: what is downloaded, when, and that nothing else ever is."""

from __future__ import annotations

import shutil
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType

import pytest

from refract.backends._source import find_model, is_hub_name
from refract.cli import fetch as fetching
from refract.cli import inputs
from refract.data import corpora
from refract.errors import ModelError
from tests.cli.conftest import Shell
from tests.data.file_server import FileServer, serving_file
from tests.data.test_fetch_corpus import NOWHERE, TEXTS, corpus_of, zipped


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """A mirror of the only corpus that can be fetched."""
    with serving_file(zipped(TEXTS)) as served:
        known = MappingProxyType({"tiny": corpus_of(served.content, served.url)})
        for module in (corpora, fetching, inputs):
            monkeypatch.setattr(module, "CORPORA", known)
        yield served


def test_a_corpus_is_fetched_listed_and_scored(refract: Shell, mirror: FileServer) -> None:
    assert any(line.startswith("tiny ") and " no " in line for line in refract("fetch", "--list").out.splitlines())
    ran = refract("fetch", "--corpus", "tiny")
    assert ran.code == 0
    assert Path(ran.out.strip()).read_bytes() == TEXTS["tiny-raw/tiny.test.raw"]
    assert any(line.startswith("tiny ") and " yes " in line for line in refract("fetch", "--list").out.splitlines())
    scored = refract.score("--corpus", "tiny", "--json-out", "-")
    assert scored.code == 0
    methodology = scored.report["methodology"]
    assert isinstance(methodology, dict)
    assert methodology["corpus"].startswith("tiny.test.raw@")


def test_score_downloads_nothing_unless_it_is_asked_to(refract: Shell, mirror: FileServer) -> None:
    ran = refract.score("--corpus", "tiny")
    assert ran.code == 3
    assert "hint: refract fetch --corpus tiny, or the same command with --fetch" in ran.err
    assert mirror.asked == []
    assert refract.score("--corpus", "tiny", "--fetch").code == 0
    assert len(mirror.asked) == 1
    assert refract.score("--corpus", "tiny", "--fetch").code == 0
    assert len(mirror.asked) == 1


def test_what_cannot_be_run_is_refused_before_a_download(refract: Shell, mirror: FileServer) -> None:
    assert refract.score("--corpus", "tiny", "--fetch", "--candidate", "ctk=nonsense").code == 2
    assert mirror.asked == []


def test_the_variable_of_scores_corpus_fetches_nothing(
    refract: Shell, mirror: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFRACT_CORPUS", "tiny")
    assert refract("fetch").code == 2
    monkeypatch.setenv("REFRACT_FETCH_CORPUS", "tiny")
    assert refract("fetch").code == 0


def test_a_file_of_that_name_comes_first(refract: Shell, mirror: FileServer) -> None:
    shutil.copy("corpus.txt", "tiny")
    assert refract.score("--corpus", "tiny", "--fetch").code == 0
    assert mirror.asked == []


def test_without_a_network_it_is_one_line_and_a_hint(
    refract: Shell, mirror: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = MappingProxyType({"tiny": corpus_of(mirror.content, NOWHERE)})
    monkeypatch.setattr(fetching, "CORPORA", known)
    ran = refract("fetch", "--corpus", "tiny")
    assert (ran.code, ran.out) == (3, "")
    assert ran.err.splitlines()[1:] == [
        "refract: tiny-raw.zip could not be downloaded: no mirror can be reached",
        "  hint: connect to the network and run it again; behind a proxy set HTTPS_PROXY",
    ]
    assert not (refract.folder / "cache" / "corpora").exists()


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ((), "refract fetch --list shows what there is"),
        (("--corpus", "tinny"), "did you mean tiny?"),
        (("--model", "smollm"), "did you mean smollm2?"),
    ],
)
def test_what_is_not_known_gets_a_hint(refract: Shell, mirror: FileServer, words: tuple[str, ...], hint: str) -> None:
    ran = refract("fetch", *words)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.splitlines()[-1] == f"  hint: {hint}"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[bool]:
    """A hub client that has nothing in its cache; the list says for each call whether it was allowed to download."""
    asked: list[bool] = []

    def snapshot_download(name: str, *, allow_patterns: list[str], local_files_only: bool) -> str:
        asked.append(not local_files_only)
        if local_files_only:
            raise OSError("not in the cache")
        return str(tmp_path / name)

    module = types.ModuleType("huggingface_hub")
    module.snapshot_download = snapshot_download  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    return asked


def test_a_model_of_the_hub_is_downloaded_by_fetch_alone(refract: Shell, hub: list[bool]) -> None:
    with pytest.raises(ModelError, match=r"only --fetch downloads") as caught:
        find_model("org/name")
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("refract fetch --model org/name")
    assert hub == [False]
    ran = refract("fetch", "--model", "org/name")
    assert (ran.code, ran.out) == (0, f"{refract.folder / 'org' / 'name'}\n")
    assert hub == [False, True]


def test_score_downloads_from_the_hub_only_when_it_is_asked_to(refract: Shell, hub: list[bool]) -> None:
    small = ["org/name" if word == "fake" else word for word in refract.small]
    assert refract("score", *small).code == 0
    assert hub == []
    assert refract("score", *small, "--fetch").code == 0
    assert hub == [True]


def test_a_folder_of_that_shape_is_no_hub_name(refract: Shell, hub: list[bool]) -> None:
    assert is_hub_name("org/name")
    (refract.folder / "org" / "name").mkdir(parents=True)
    assert not is_hub_name("org/name")
    assert not any(map(is_hub_name, ("smollm2", "./name", "/org/name", "org/name.gguf", "a/b/c")))
