"""The work behind `refract selftest`: each check is a line that says ok, warn or fail, and what to do."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from refract import __version__
from refract.backends import DEFAULT_BACKEND, load_engine
from refract.cli import inputs
from refract.cli.engine_options import engine_options
from refract.cli.output import emit
from refract.data.models import DEFAULT_MODEL
from refract.engine import Check, Engine, LoadSpec
from refract.errors import ModelError, RefractError, SetupError
from refract.kv import KVConfig
from refract.run.blobs import BlobFolder
from refract.run.cache import cache_folder
from refract.run.machine import machine, packages
from refract.run.store import AnswerStore
from refract.work import Failure, Generate, Generation, Message

BASE_PACKAGES = ("numpy", "rich", "jinja2", "requests")
NEEDED_MEMORY_GIB, NEEDED_DISK_BYTES = 4.0, 2 << 30
TOKENS = 16
FAILED = SetupError.exit_code


def selftest(args: argparse.Namespace) -> int:
    """Prints a line for every check as soon as it is known; returns 0, or 3 when one failed."""
    worst = 0
    for check in _checks(args):
        emit(line(check))
        if check.status == "fail":
            worst = FAILED
    return worst


def line(check: Check) -> str:
    """The check as a line, and a second one with what to do where that is known."""
    fix = f"      fix: {check.fix}\n" if check.fix and check.status != "ok" else ""
    return f"{check.status:<6}{check.name:<16}{check.message}\n{fix}"


def _checks(args: argparse.Namespace) -> Iterator[Check]:
    reference = inputs.kv_config("--reference", args.reference)
    candidate = inputs.kv_config("--candidate", args.candidate)
    yield Check(name="refract", status="ok", message=f"{__version__}, Python {platform.python_version()}")
    yield from map(_package, BASE_PACKAGES)
    yield _memory()
    try:
        cache = cache_folder(args.cache_dir)
    except SetupError as error:
        yield _failed("cache folder", error)
        return
    yield _disk(cache)
    yield _store(cache)
    yield from _engine_checks(args, cache, (reference, candidate))


def _engine_checks(args: argparse.Namespace, cache: Path, configurations: tuple[KVConfig, ...]) -> Iterator[Check]:
    backend = args.backend or DEFAULT_BACKEND
    options = engine_options(args)
    try:
        engine = load_engine(backend, options, cache)
    except SetupError as error:
        yield _failed(backend, error)
        return
    try:
        model = inputs.model_place(args.model or DEFAULT_MODEL, cache)
    except SetupError as error:
        status: Literal["warn", "fail"] = "fail" if args.model else "warn"
        yield from (Check(name=name, status="ok", message=version) for name, version in _engine_packages())
        yield Check(name="model", status=status, message=error.message, fix=error.hint)
        return
    try:
        yield from engine.check(model)
    except RefractError as error:
        yield _failed("model" if isinstance(error, ModelError) else backend, error)
        return
    if args.model:
        for kv in configurations:
            yield _generation(engine, LoadSpec(model=model, kv=kv, max_tokens=512, options=options))


def _generation(engine: Engine, spec: LoadSpec) -> Check:
    """Whether the model generates under a configuration, and what the engine allocated for it."""
    started = time.perf_counter()
    try:
        engine.check_kv(spec.model, spec.kv)
        prompt = engine.tokenizer(spec.model).render([Message(role="user", content="Name three rivers of Europe.")])
        request = Generate(prompt=prompt, max_new_tokens=TOKENS)
        with TemporaryDirectory(prefix="refract-") as folder, engine.load(spec, BlobFolder(Path(folder))) as session:
            effective = session.effective_kv
            answers = [answer for _, answer in session.run([request])]
    except RefractError as error:
        return _failed(str(spec.kv), error)
    answer = answers[0] if answers else Failure(kind="silence", message="the engine gave no answer")
    if not isinstance(answer, Generation) or len(answer.tokens) <= (answer.stop == "eos"):
        said = answer.message if isinstance(answer, Failure) else "the engine generated nothing"
        return Check(name="generation", status="fail", message=f"{spec.kv}: {said}", fix="try another model or format")
    seconds = time.perf_counter() - started
    found = f"K {effective.k}, V {effective.v}, {effective.layers_compressed} of {effective.layers} layers compressed"
    message = f"{spec.kv}: {len(answer.tokens)} tokens in {seconds:.1f} s with loading; {found}"
    return Check(name="generation", status="ok", message=message)


def _package(name: str) -> Check:
    try:
        return Check(name=name, status="ok", message=importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Check(name=name, status="fail", message="is not installed", fix=f"pip install {name}")


def _engine_packages() -> list[tuple[str, str]]:
    """What of the engines' packages is installed, by name."""
    return [(name, version) for name, version in packages().items() if name not in BASE_PACKAGES]


def _memory() -> Check:
    found = machine()["memory_gib"]
    if not isinstance(found, int | float):
        return Check(name="memory", status="ok", message="the system does not say")
    low = found < NEEDED_MEMORY_GIB
    fix = f"use a small model; {NEEDED_MEMORY_GIB:g} GiB is the least for most"
    return Check(name="memory", status="warn" if low else "ok", message=f"{found:g} GiB", fix=fix)


def _disk(cache: Path) -> Check:
    free = shutil.disk_usage(cache).free
    low = free < NEEDED_DISK_BYTES
    fix = "make room, or name a folder on another disk with --cache-dir"
    return Check(
        name="disk", status="warn" if low else "ok", message=f"{free / 2**30:.1f} GiB free for {cache}", fix=fix
    )


def _store(cache: Path) -> Check:
    try:
        with AnswerStore(cache) as store:
            size = store.file.stat().st_size
    except RefractError as error:
        return _failed("answer store", error)
    return Check(name="answer store", status="ok", message=f"{size / 2**20:.1f} MiB, readable and writable")


def _failed(name: str, error: RefractError) -> Check:
    return Check(name=name, status="fail", message=error.message, fix=error.hint)
