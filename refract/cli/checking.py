"""The work behind `refract selftest`: each check is a line that says ok, warn or fail, and what to do."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from refract import __version__
from refract.backends import DEFAULT_BACKEND, load_engine
from refract.cli import inputs
from refract.cli.engine_options import engine_options
from refract.cli.output import emit
from refract.cli.prune import size
from refract.cli.reporting import TextForm, text_form
from refract.cli.trial import failed, trial
from refract.data.models import DEFAULT_MODEL
from refract.engine import Capability, Check, Engine
from refract.errors import ModelError, RefractError, SetupError
from refract.kv import KVConfig
from refract.report.plain import ascii_only, visible
from refract.run.cache import cache_folder
from refract.run.machine import machine, packages
from refract.run.store import AnswerStore

BASE_PACKAGES = ("numpy", "rich", "jinja2", "requests", "shtab")
NEEDED_MEMORY_GIB, NEEDED_DISK_BYTES = 4.0, 2 << 30
FAILED = SetupError.exit_code
_MARGIN = 22  # columns before a message
_COLOURS = {"ok": "32", "warn": "33", "fail": "1;31"}


def selftest(args: argparse.Namespace) -> int:
    """Prints a line for every check as soon as it is known; returns 0, or 3 when one failed."""
    worst, form = 0, text_form()
    for check in _checks(args):
        emit(line(check, form))
        if check.status == "fail":
            worst = FAILED
    return worst


def line(check: Check, form: TextForm) -> str:
    """The check in lines of at most the form's width: what was found, and what to do where that is known."""
    fix = check.fix if check.status != "ok" and check.fix != check.message else None
    lines = _wrapped(check.message, form["width"] - _MARGIN)
    if fix:
        lines += _wrapped(f"fix: {fix}", form["width"] - _MARGIN)
    status = f"{check.status:<6}"
    if form["color"]:
        status = f"\x1b[{_COLOURS[check.status]}m{status}\x1b[0m"
    head = f"{status}{check.name:<{_MARGIN - 6}}"
    if len(check.name) >= _MARGIN - 6:
        head, lines = f"{status}{check.name}", ["", *lines]
    text = f"\n{' ' * _MARGIN}".join([head + lines[0], *lines[1:]]) + "\n"
    return ascii_only(text) if form["ascii"] else text


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(visible(text), width, break_on_hyphens=False) or [""]


def _checks(args: argparse.Namespace) -> Iterator[Check]:
    reference = inputs.kv_config("--reference", args.reference)
    candidate = inputs.kv_config("--candidate", args.candidate)
    yield Check(name="refract", status="ok", message=f"{__version__}, Python {platform.python_version()}")
    facts = machine()
    yield Check(name="system", status="ok", message=f"{facts['os']}, {facts['cpu']}, {facts['cores']} cores")
    yield from map(_package, BASE_PACKAGES)
    yield _memory()
    try:
        cache = cache_folder(args.cache_dir)
    except SetupError as error:
        yield failed("cache folder", error)
        return
    yield _disk(cache)
    yield _store(cache)
    yield from _engine_checks(args, cache, (reference, candidate))


def _engine_checks(args: argparse.Namespace, cache: Path, configurations: tuple[KVConfig, KVConfig]) -> Iterator[Check]:
    backend = args.backend or DEFAULT_BACKEND
    options = engine_options(args)
    try:
        engine = load_engine(backend, options, cache)
    except SetupError as error:
        yield failed(backend, error)
        return
    try:
        model = inputs.model_place(args.model or DEFAULT_MODEL, cache)
    except SetupError as error:
        status: Literal["warn", "fail"] = "fail" if args.model else "warn"
        yield from _engine_alone(engine, configurations[0])
        yield Check(name="model", status=status, message=error.message, fix=error.hint)
        return
    try:
        yield from engine.check(model)
    except RefractError as error:
        yield failed("model" if isinstance(error, ModelError) else backend, error)
        return
    if args.model:
        yield from trial(engine, model, *configurations, options=options)


def _engine_alone(engine: Engine, kv: KVConfig) -> Iterator[Check]:
    """What can be said of an engine without a model: its packages, and whether its programs answer."""
    yield from (Check(name=name, status="ok", message=version) for name, version in _engine_packages())
    try:
        count = len(engine.capabilities(kv))
    except RefractError as error:
        yield failed(engine.name, error)
        return
    yield Check(name=engine.name, status="ok", message=f"usable, {count} of {len(Capability)} abilities")


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
        name="disk", status="warn" if low else "ok", message=f"{size(free)} free for {_homely(cache)}", fix=fix
    )


def _store(cache: Path) -> Check:
    try:
        with AnswerStore(cache) as store:
            taken = store.file.stat().st_size
    except RefractError as error:
        return failed("answer store", error)
    return Check(name="answer store", status="ok", message=f"{size(taken)}, readable and writable")


def _homely(path: Path) -> str:
    """The path with ~ for the home folder: these lines are pasted into bug reports."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)
