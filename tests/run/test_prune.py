"""Making room: what may go by age and size, what nothing refers to, and nothing while somebody uses the folder."""

from __future__ import annotations

import hashlib
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from refract.errors import StoreError
from refract.run.prune import Entry, Inventory, plan_pruning, prune, take_inventory
from refract.run.store import AnswerStore
from refract.run.usage import Claim
from refract.work import BLOB_LIST, Base, Generation, TokenScores, pack_blobs

NOW = datetime(2026, 12, 1, tzinfo=UTC)


def entry(key: str, days: float, size_bytes: int = 10, blob: str | None = None) -> Entry:
    created = (NOW - timedelta(days=days)).isoformat(timespec="seconds")
    return Entry(key=key, size_bytes=size_bytes, created=created, blobs=frozenset({blob} if blob else ()))


def inventory(*answers: Entry, **blobs: int) -> Inventory:
    return Inventory(answers=answers, blobs=blobs)


def names(plan_answers: tuple[Entry, ...]) -> list[str]:
    return [answer.key for answer in plan_answers]


def test_without_a_limit_only_what_nothing_refers_to_goes() -> None:
    found = inventory(entry("a", 400, blob="used"), entry("b", 1), used=100, orphan=7)
    plan = plan_pruning(found, now=NOW)
    assert (plan.answers, plan.blobs, plan.size_bytes) == ((), {"orphan": 7}, 7)


def test_answers_go_by_age_with_the_blobs_that_only_they_refer_to() -> None:
    found = inventory(entry("a", 31, blob="x"), entry("b", 31, blob="y"), entry("c", 29, blob="y"), x=100, y=50)
    plan = plan_pruning(found, now=NOW, older_than_days=30)
    assert (names(plan.answers), plan.blobs, plan.size_bytes) == (["a", "b"], {"x": 100}, 120)


@pytest.mark.parametrize(
    ("most_bytes", "gone"),
    [(1000, []), (180, []), (179, ["a"]), (70, ["a"]), (69, ["a", "b"]), (10, ["a", "b"]), (9, ["a", "b", "c"])],
)
def test_the_oldest_go_until_the_rest_fits(most_bytes: int, gone: list[str]) -> None:
    """Worked by hand: a 10 + blob 100, b 10 + blob 50, c 10."""
    found = inventory(entry("a", 3, blob="x"), entry("b", 2, blob="y"), entry("c", 1), x=100, y=50)
    assert names(plan_pruning(found, now=NOW, most_bytes=most_bytes).answers) == gone


def test_a_shared_blob_counts_once_and_stays_while_one_refers_to_it() -> None:
    found = inventory(entry("a", 3, blob="x"), entry("b", 2, blob="x"), x=100)
    plan = plan_pruning(found, now=NOW, most_bytes=110)
    assert (names(plan.answers), plan.blobs) == (["a"], {})


def filled(folder: Path) -> None:
    """A store with a base, a generation with a base, scores, and what killed processes left."""
    with AnswerStore(folder) as store:
        base, kept = (store.blobs.put(data, format="test/1") for data in (b"base" * 10, b"kept" * 10))
        store.blobs.put(b"orphan" * 10, format="test/1")
        store.put("base", Base(blob=base))
        store.put("generation", Generation(tokens=(1, 2), stop="length", base=kept))
        store.put("scores", TokenScores(logprobs=np.zeros(3, dtype=np.float32)))
    (folder / "blobs" / ".refract-0123.tmp").write_bytes(b"half")
    (folder / "models" / ".fetch-x").mkdir(parents=True)
    (folder / "models" / ".fetch-x" / "half.whl").write_bytes(b"half")
    (folder / "models" / "model.gguf").write_bytes(b"model")


def test_an_inventory_says_what_there_is_and_changes_nothing(tmp_path: Path) -> None:
    filled(tmp_path)
    found = take_inventory(tmp_path)
    assert {answer.key for answer in found.answers} == {"base", "generation", "scores"}
    orphan = hashlib.sha256(b"orphan" * 10).hexdigest()
    assert found.blobs.keys() - {blob for answer in found.answers for blob in answer.blobs} == {orphan}
    assert {path.name: size for path, size in found.leftovers.items()} == {".refract-0123.tmp": 4, ".fetch-x": 4}
    assert take_inventory(tmp_path) == found


def test_blobs_that_a_blob_stands_for_are_used_as_it_is(tmp_path: Path) -> None:
    with AnswerStore(tmp_path) as store:
        parts = [store.blobs.put(data, format="test/1") for data in (b"one", b"two")]
        joined = store.blobs.put(pack_blobs(parts), format=BLOB_LIST)
        orphan = store.blobs.put(b"three", format="test/1")
        store.put("base", Base(blob=joined))
    plan = plan_pruning(take_inventory(tmp_path), now=NOW)
    assert plan.blobs.keys() == {orphan.sha256}
    everything = plan_pruning(take_inventory(tmp_path), now=NOW, most_bytes=0)
    assert everything.blobs.keys() == {ref.sha256 for ref in (*parts, joined, orphan)}


def test_an_empty_folder_holds_nothing(tmp_path: Path) -> None:
    found = take_inventory(tmp_path)
    assert (found.answers, found.blobs, found.leftovers) == ((), {}, {})
    assert list(tmp_path.iterdir()) == []


def test_a_pruned_store_opens_and_has_the_rest(tmp_path: Path) -> None:
    filled(tmp_path)
    found = take_inventory(tmp_path)
    with sqlite3.connect(tmp_path / "answers.sqlite") as connection:
        connection.execute("UPDATE answers SET created = '2020-01-01T00:00:00+00:00' WHERE key = 'base'")
    found = take_inventory(tmp_path)
    plan = plan_pruning(found, now=NOW, older_than_days=30)
    assert names(plan.answers) == ["base"]
    prune(tmp_path, plan)
    with AnswerStore(tmp_path) as store:  # which compares the checksum over all keys
        assert store.get("base") is None
        assert store.get("generation") is not None
        assert store.get("scores") is not None
    assert [path.name for path in tmp_path.rglob(".*")] == []
    assert (tmp_path / "models" / "model.gguf").is_file()
    left = take_inventory(tmp_path)
    assert plan_pruning(left, now=NOW).size_bytes == 0
    assert left.size_bytes == found.size_bytes + sum(found.leftovers.values()) - plan.size_bytes


def test_a_damaged_answer_is_named(tmp_path: Path) -> None:
    filled(tmp_path)
    with sqlite3.connect(tmp_path / "answers.sqlite") as connection:
        connection.execute("UPDATE answers SET body = x'00' WHERE key = 'base'")
    with pytest.raises(StoreError, match=r"the stored answer base in .*answers\.sqlite cannot be read"):
        take_inventory(tmp_path)


def test_whoever_opens_the_store_claims_its_folder(tmp_path: Path) -> None:
    with (
        AnswerStore(tmp_path),
        Claim(tmp_path),
        pytest.raises(StoreError, match="another refract uses the cache folder"),
    ):
        Claim(tmp_path, alone=True)
    with Claim(tmp_path, alone=True):
        pass


def test_a_claim_of_another_process_counts_and_ends_with_it(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from refract.run.store import AnswerStore\n"
    code += "store = AnswerStore(Path(sys.argv[1])); print('open', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(StoreError, match="another refract uses"):
            Claim(tmp_path, alone=True)
        other.kill()
    with Claim(tmp_path, alone=True):
        pass


def test_whoever_comes_while_the_folder_is_pruned_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refract.run.usage.WAIT_S", 0.05)
    with Claim(tmp_path, alone=True), pytest.raises(StoreError, match="is being pruned"):
        AnswerStore(tmp_path)


def test_a_damaged_lock_file_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "in-use.lock").write_bytes(b"not a database at all " * 99)
    with pytest.raises(StoreError, match="is damaged") as caught:
        AnswerStore(tmp_path)
    assert "delete the file" in str(caught.value.hint)
