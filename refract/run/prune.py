"""What the answer store holds and how it goes: answers by age or size, and whatever nothing refers to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from refract.atomic import PREFIX
from refract.errors import StoreError
from refract.run.blobs import BlobFolder
from refract.run.codec import CodecError, decode
from refract.run.database import Database
from refract.work import BLOB_LIST, Base, BlobRef, Generation, unpack_blobs

_LEFT_BEHIND = (f"{PREFIX}*.tmp", ".fetch-*", ".*.part")  # what a killed process leaves; nobody reads them


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One stored answer: its size in the database, when it was put there (UTC), and the blobs it refers to."""

    key: str
    size_bytes: int
    created: str
    blobs: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """The store's answers, oldest first, its blobs' sizes by sha256, and files that killed processes left."""

    answers: tuple[Entry, ...]
    blobs: Mapping[str, int]
    leftovers: Mapping[Path, int] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """All answers and blobs."""
        return sum(answer.size_bytes for answer in self.answers) + sum(self.blobs.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be removed."""

    answers: tuple[Entry, ...]
    blobs: Mapping[str, int]
    leftovers: Mapping[Path, int]

    @property
    def size_bytes(self) -> int:
        """What removing it frees."""
        answers = sum(answer.size_bytes for answer in self.answers)
        return answers + sum(self.blobs.values()) + sum(self.leftovers.values())


def take_inventory(cache: Path) -> Inventory:
    """What lies in the store of a cache folder; it is not changed. Raises: StoreError for a damaged store."""
    blobs = {file.name: file.stat().st_size for file in _blob_files(cache)}
    leftovers = {file: _size(file) for pattern in _LEFT_BEHIND for file in cache.rglob(pattern)}
    if not _database_file(cache).is_file():
        return Inventory(answers=(), blobs=blobs, leftovers=leftovers)
    database = Database(_database_file(cache))
    try:
        rows = database.read("SELECT key, kind, length(body), created FROM answers ORDER BY created, key")
        answers = tuple(
            Entry(
                key=str(key),
                size_bytes=int(size),
                created=str(created),
                blobs=_blobs_of(cache, database, str(key), str(kind)),
            )
            for key, kind, size, created in rows
        )
    finally:
        database.close()
    return Inventory(answers=answers, blobs=blobs, leftovers=leftovers)


def plan_pruning(
    found: Inventory, *, now: datetime, older_than_days: float | None = None, most_bytes: int | None = None
) -> Plan:
    """What to remove: answers older than so many days, the oldest until the rest has at most so many bytes, and all
    blobs and leftovers that nothing refers to then."""
    cutoff = None if older_than_days is None else now.astimezone(UTC) - timedelta(days=older_than_days)
    kept = [answer for answer in found.answers if cutoff is None or datetime.fromisoformat(answer.created) >= cutoff]
    if most_bytes is not None:
        kept = kept[_first_fitting(kept, found.blobs, most_bytes) :]
    keys, used = {answer.key for answer in kept}, {blob for answer in kept for blob in answer.blobs}
    return Plan(
        answers=tuple(answer for answer in found.answers if answer.key not in keys),
        blobs={name: size for name, size in found.blobs.items() if name not in used},
        leftovers=found.leftovers,
    )


def _first_fitting(answers: Sequence[Entry], blobs: Mapping[str, int], most_bytes: int) -> int:
    """How many of the oldest answers have to go so that the rest, with its blobs, has at most `most_bytes`."""
    total, seen = 0, set[str]()
    for index in range(len(answers) - 1, -1, -1):
        answer = answers[index]
        total += answer.size_bytes + sum(blobs.get(blob, 0) for blob in answer.blobs - seen)
        seen |= answer.blobs
        if total > most_bytes:
            return index + 1
    return 0


def prune(cache: Path, plan: Plan) -> None:
    """Removes what the plan names: answers first, so that no answer ever refers to a blob that went before it.

    Whoever calls has the folder alone (`refract.run.usage.Claim`). Raises: StoreError.
    """
    if plan.answers:
        database = Database(_database_file(cache))
        try:
            database.remove([answer.key for answer in plan.answers])
        finally:
            database.close()
    try:
        for file in _blob_files(cache):
            if file.name in plan.blobs:
                file.unlink()
        for file in plan.leftovers:
            _remove(file)
    except OSError as error:
        raise StoreError(
            f"cannot remove {error.filename}: {error.strerror or error}", hint="check who owns it"
        ) from error


def _database_file(cache: Path) -> Path:
    return cache / "answers.sqlite"


def _blob_files(cache: Path) -> Iterator[Path]:
    for file in (cache / "blobs").glob("??/*"):
        if not file.name.startswith(".") and file.is_file():
            yield file


def _blobs_of(cache: Path, database: Database, key: str, kind: str) -> frozenset[str]:
    if kind not in (Base.__name__, Generation.__name__):
        return frozenset()
    ((body,),) = database.read("SELECT body FROM answers WHERE key = ?", (key,))
    try:
        answer = decode(body)
    except CodecError as error:
        file = database.file
        hint = f"delete the file {file} (with -wal and -shm beside it) and run the same command again"
        raise StoreError(f"the stored answer {key} in {file} cannot be read ({error})", hint=hint) from error
    ref = answer.blob if isinstance(answer, Base) else answer.base if isinstance(answer, Generation) else None
    return frozenset() if ref is None else _with_listed(BlobFolder(cache / "blobs"), ref)


def _with_listed(blobs: BlobFolder, ref: BlobRef) -> frozenset[str]:
    """The blob and, where it stands for others, those; all of an unreadable list's are lost with it."""
    if ref.format != BLOB_LIST:
        return frozenset({ref.sha256})
    try:
        listed = unpack_blobs(blobs.path(ref).read_bytes())
    except (StoreError, OSError, ValueError, TypeError):
        listed = ()
    return frozenset({ref.sha256, *(each.sha256 for each in listed)})


def _size(path: Path) -> int:
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return path.stat().st_size


def _remove(path: Path) -> None:
    if path.is_dir():
        for inner in sorted(path.rglob("*"), reverse=True):
            if inner.is_dir() and not inner.is_symlink():
                inner.rmdir()
            else:
                inner.unlink()
        path.rmdir()
    else:
        path.unlink(missing_ok=True)
