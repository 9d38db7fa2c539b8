from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from refract.errors import StoreError
from refract.run.codec import encode
from refract.run.database import Database
from refract.run.store import AnswerStore, MemoryStore, Store
from refract.work import Base, EffectiveKV, Generation, TokenScores

EFFECTIVE = EffectiveKV(k="q8_0", v="q8_0", layers=4, layers_compressed=4, bytes_per_token=1.5, notes=("a",))


def answer(number: int) -> TokenScores:
    return TokenScores(logprobs=np.arange(number, number + 20, dtype=np.float32))


def same(one: object, other: object) -> bool:
    return encode(one) == encode(other)  # type: ignore[arg-type]


@contextmanager
def both(tmp_path: Path) -> Iterator[list[Store]]:
    with AnswerStore(tmp_path / "disk") as store:
        yield [store, MemoryStore(tmp_path / "memory")]


def test_what_was_put_comes_back(tmp_path: Path) -> None:
    with both(tmp_path) as stores:
        for store in stores:
            assert store.get("k1") is None
            assert store.effective("d") is None
            store.put("k1", answer(1))
            store.put("k2", answer(2))
            store.put_effective("d", EFFECTIVE)
            assert same(store.get("k1"), answer(1))
            found = store.get_many(["k1", "absent", "k2"])
            assert list(found) == ["k1", "k2"]
            assert same(found["k2"], answer(2))
            assert store.effective("d") == EFFECTIVE
            store.put("k1", answer(3))
            assert same(store.get("k1"), answer(3))


def test_another_process_sees_it_and_so_does_the_next(tmp_path: Path) -> None:
    with AnswerStore(tmp_path) as first, AnswerStore(tmp_path) as second:
        first.put("k", answer(1))
        assert same(second.get("k"), answer(1))
    with AnswerStore(tmp_path) as third:
        assert same(third.get("k"), answer(1))


def test_an_answer_whose_blob_is_gone_counts_as_not_stored(tmp_path: Path) -> None:
    with both(tmp_path) as stores:
        for store in stores:
            ref = store.blobs.put(b"base", format="x/1")
            for key, value in (("base", Base(blob=ref)), ("talk", Generation(tokens=(1,), stop="eos", base=ref))):
                store.put(key, value)
                assert same(store.get(key), value)
            store.blobs.path(ref).unlink()
            assert store.get_many(["base", "talk"]) == {}


def _write(folder: Path, start: int, count: int) -> list[str]:
    code = (
        "import sys; from pathlib import Path; import numpy as np\n"
        "from refract.run.store import AnswerStore; from refract.work import TokenScores\n"
        "folder, start, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])\n"
        "with AnswerStore(folder) as store:\n"
        "    for n in range(start, start + count):\n"
        "        store.put(f'k{n}', TokenScores(logprobs=np.arange(n, n + 20, dtype=np.float32)))\n"
        "        print(n, flush=True)\n"
    )
    return [sys.executable, "-c", code, str(folder), str(start), str(count)]


def _environ() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def test_two_processes_write_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "cache"
    writers = [
        subprocess.Popen(_write(folder, start, 150), env=_environ(), stdout=subprocess.DEVNULL) for start in (0, 100)
    ]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0]
    with AnswerStore(folder) as store:
        found = store.get_many(f"k{n}" for n in range(250))
        assert len(found) == 250
        assert all(same(found[f"k{n}"], answer(n)) for n in range(250))


def test_what_was_put_survives_kill_9(tmp_path: Path) -> None:
    writer = subprocess.Popen(_write(tmp_path, 0, 1_000_000), env=_environ(), stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    last = -1
    for line in writer.stdout:
        last = int(line)
        if last >= 60:
            break
    time.sleep(0.02)
    writer.send_signal(signal.SIGKILL)
    rest = [int(line) for line in writer.stdout.read().split("\n") if line]
    writer.stdout.close()
    assert writer.wait(timeout=30) == -signal.SIGKILL
    last = max([last, *rest[:-1]])
    with AnswerStore(tmp_path) as store:
        assert len(store.get_many(f"k{n}" for n in range(last + 1))) == last + 1
        store.put("after", answer(0))


def _filled(folder: Path) -> Path:
    with AnswerStore(folder) as store:
        for n in range(12):
            store.put(f"k{n}", answer(n))
        store.put_effective("d", EFFECTIVE)
        file = store.file
    assert {entry.name for entry in folder.iterdir()} == {file.name, "in-use.lock"}, (
        "closing takes the write-ahead log in"
    )
    return file


def test_no_flipped_byte_is_a_silent_miss(tmp_path: Path) -> None:
    """Two bits of every 97th byte and of all page headers: the right answers, or an error that names the file."""
    file = _filled(tmp_path / "good")
    data = file.read_bytes()
    damaged, right = tmp_path / "damaged", 0
    refused: list[StoreError] = []
    headers = {page + at for page in range(0, len(data), 4096) for at in range(12)}
    for at in sorted({*range(0, len(data), 97), *headers}):
        for bit in (0x01, 0x80):
            damaged.mkdir()
            (damaged / file.name).write_bytes(data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :])
            try:
                with AnswerStore(damaged) as store:
                    found = store.get_many(f"k{n}" for n in range(12))
                    assert len(found) == 12, f"byte {at} lost {12 - len(found)} answers"
                    assert all(same(found[f"k{n}"], answer(n)) for n in range(12)), f"byte {at}"
                    assert store.effective("d") == EFFECTIVE, f"byte {at}"
                right += 1
            except StoreError as error:
                refused.append(error)
            shutil.rmtree(damaged)
    assert right > 0
    assert len(refused) > 0
    assert all(str(damaged / file.name) in error.message and error.hint for error in refused)


def test_a_damaged_entry_is_named_with_its_key_and_file(tmp_path: Path) -> None:
    file = _filled(tmp_path)
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE answers SET body = x'00' || substr(body, 2) WHERE key = 'k7'")
    connection.close()
    with AnswerStore(tmp_path) as store:
        assert store.get("k6") is not None
        with pytest.raises(StoreError, match=r"k7 in .*answers.sqlite does not match its checksum") as caught:
            store.get("k7")
    assert caught.value.hint is not None
    assert f"delete the file {file}" in caught.value.hint


def test_a_lost_row_is_noticed(tmp_path: Path) -> None:
    file = _filled(tmp_path)
    with sqlite3.connect(file) as connection:
        connection.execute("DELETE FROM answers WHERE key = 'k7'")
    connection.close()
    with pytest.raises(StoreError, match="lost some of its keys"):
        AnswerStore(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"this is not a database, it is a text of more than a hundred bytes" * 3, "not a database"),
        (b"SQLite format 3\x00" + b"\x00" * 200, "database"),
    ],
)
def test_a_file_that_is_no_database_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "answers.sqlite").write_bytes(content)
    with pytest.raises(StoreError, match=message):
        AnswerStore(tmp_path)


def test_somebody_elses_database_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "answers.sqlite") as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    with pytest.raises(StoreError, match="lacks the table answers"):
        AnswerStore(tmp_path)


def test_a_newer_format_is_refused_with_a_hint(tmp_path: Path) -> None:
    file = _filled(tmp_path)
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE meta SET value = '2' WHERE name = 'format'")
    connection.close()
    with pytest.raises(StoreError, match="format version 2, this program reads 1") as caught:
        AnswerStore(tmp_path)
    assert caught.value.hint is not None
    assert "update refract" in caught.value.hint


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="cannot make the folder"):
        AnswerStore(tmp_path / "file" / "cache")


def test_a_folder_in_the_databases_place_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "answers.sqlite").mkdir()
    with pytest.raises(StoreError, match="unable to open") as caught:
        AnswerStore(tmp_path)
    assert caught.value.hint is not None
    assert "--no-cache" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("database or disk is full", "make room"),
        ("attempt to write a readonly database", "--cache-dir"),
        ("database is locked", "another process"),
        ("disk I/O error", "make room"),
    ],
)
def test_a_write_that_fails_is_one_line_and_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, hint: str
) -> None:
    def fail(self: Database, connection: sqlite3.Connection, key: str) -> None:
        raise sqlite3.OperationalError(text)

    with AnswerStore(tmp_path) as store:
        store.put("k", answer(1))
        with monkeypatch.context() as patch:
            patch.setattr(Database, "add_key", fail)
            with pytest.raises(StoreError, match=text) as caught:
                store.put("k2", answer(2))
        assert caught.value.hint is not None
        assert hint in caught.value.hint
        assert store.get("k2") is None
        store.put("k2", answer(2))
        assert same(store.get("k2"), answer(2))


def test_a_disk_that_is_really_full_is_one_line_and_keeps_what_was_stored(tmp_path: Path) -> None:
    with AnswerStore(tmp_path) as store:
        store.put("k", answer(1))
        store._database._connection.execute("PRAGMA max_page_count = 12")
        with pytest.raises(StoreError, match="full") as caught:
            store.put("large", TokenScores(logprobs=np.zeros(100_000, dtype=np.float32)))
        assert caught.value.hint is not None
        assert same(store.get("k"), answer(1))
        assert store.get("large") is None


def test_a_fingerprint_holds_until_the_file_changes(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"weights")
    with AnswerStore(tmp_path / "cache") as store:
        assert store.fingerprint(model) is None
        store.put_fingerprint(model, "sha256:1")
        assert store.fingerprint(model) == "sha256:1"
        state = model.stat()
        model.write_bytes(b"WEIGHTS")
        os.utime(model, ns=(state.st_atime_ns, state.st_mtime_ns))
        assert store.fingerprint(model) is None, "same size and modification time, other content"
        with pytest.raises(StoreError, match="cannot look at"):
            store.fingerprint(tmp_path / "absent")


def test_a_damaged_fingerprint_is_named(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"weights")
    with AnswerStore(tmp_path) as store:
        store.put_fingerprint(model, "sha256:1")
        with store._database.writing() as connection:
            connection.execute("UPDATE fingerprints SET fingerprint = 'sha256:2'")
        with pytest.raises(StoreError, match=r"fingerprint of .*model.gguf in .* does not match"):
            store.fingerprint(model)
