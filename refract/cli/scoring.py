"""The work behind `refract score`: refusals first, then the run, then the report and the exit code."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from refract.backends import load_engine
from refract.cli import inputs
from refract.cli.output import STDOUT, say
from refract.cli.progress import listener
from refract.cli.reporting import check_report_outputs, write_report
from refract.cli.thresholds import MISSED, missed
from refract.data.models import DEFAULT_MODEL
from refract.run.cache import cache_folder
from refract.run.provenance import build_report
from refract.run.runner import run
from refract.run.store import AnswerStore, MemoryStore, Store


def score(args: argparse.Namespace, *, allow_load: bool = True) -> int:
    """Measures, or only scores again, and reports; returns 0, or 10 when a threshold is missed."""
    check_report_outputs(args)
    cache = prepared_cache(args)
    spec = inputs.run_spec(args)
    thresholds = inputs.thresholds(args, spec.candidates)
    spec = replace(spec, model=inputs.model_place(spec.model, cache))
    engine = load_engine(args.backend, spec.options, cache)
    with open_store(cache, keep=not args.no_cache) as store, listener(args.progress) as progress:
        result = run(spec, engine, store, progress=progress, allow_load=allow_load)
    report = build_report(result, spec, ["refract", *args.words])
    failed = missed(report, thresholds)
    write_report(report, args, text=args.json_out != STDOUT, missed=failed)
    for text in (text for lines in failed.values() for text in lines):
        say(text)
    return MISSED if failed else 0


def prepared_cache(args: argparse.Namespace) -> Path:
    """The cache folder, with the model and the corpus in it that --fetch asks for. Raises: SetupError."""
    cache = cache_folder(args.cache_dir)
    if args.fetch:
        from refract.cli.fetch import fetch_missing

        inputs.candidates(args.candidate, floor=args.measure_floor)  # refused before anything is downloaded
        corpora = [str(path) for path in (args.corpus, args.rniah_haystack) if path is not None]
        fetch_missing(model=args.model or DEFAULT_MODEL, corpora=corpora, cache=cache)
    return cache


@contextlib.contextmanager
def open_store(cache: Path, *, keep: bool) -> Iterator[Store]:
    """The answer store of the cache folder, or one that is forgotten."""
    if keep:
        with AnswerStore(cache) as store:
            yield store
    else:
        with TemporaryDirectory(prefix="refract-", ignore_cleanup_errors=True) as folder:
            yield MemoryStore(Path(folder))
