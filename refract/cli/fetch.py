"""`refract fetch`: puts models that Python packages carry, and corpora from their mirrors, into the cache folder."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from refract.cli.options import add_cache_dir
from refract.cli.output import emit, say
from refract.cli.parser import suggestion
from refract.data.corpora import CORPORA, FetchableCorpus, corpus_path
from refract.data.models import FETCHABLE, Fetchable, model_path
from refract.errors import UsageError

if TYPE_CHECKING:
    from refract.cli.parser import Commands

_DESCRIPTION = (
    "Downloads a small model to try things with, or a corpus to score on, into the cache folder. What is downloaded is "
    "compared with its known sha256; what breaks off goes on when the command is run again. No other command downloads "
    "anything, unless `refract score --fetch` is asked to."
)
_HINT = "refract fetch --list shows what there is"


def add_parser(commands: Commands) -> None:
    """Adds `fetch` to the commands."""
    summary = "download a small model or a corpus"
    parser = commands.add_parser("fetch", help=summary, description=_DESCRIPTION)
    parser.add_argument(
        "--model", metavar="NAME", help="a model to fetch: a name of --list, or org/name of the Hugging Face hub"
    )
    parser.add_argument("--corpus", metavar="NAME", help="a corpus to fetch; see --list")
    parser.add_argument("--list", action="store_true", help="list what can be fetched")
    add_cache_dir(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Fetches what is named, or lists what there is; paths are printed on stdout. Returns 0."""
    if args.list:
        emit(_listing(args.cache_dir))
        return 0
    if args.model is None and args.corpus is None:
        raise UsageError("nothing to fetch: name a --model or a --corpus", hint=_HINT)
    from refract.backends._source import is_hub_name

    hub = args.model is not None and is_hub_name(args.model)
    model = args.model if hub or args.model is None else _known("model", args.model, FETCHABLE)
    corpus = None if args.corpus is None else _known("corpus", args.corpus, CORPORA)
    from refract.run.cache import cache_folder
    from refract.run.usage import Claim

    cache = cache_folder(args.cache_dir)
    with Claim(cache):
        if model is not None:
            emit(f"{_fetch_from_hub(model) if hub else _fetch_model(FETCHABLE[model], cache)}\n")
        if corpus is not None:
            emit(f"{_fetch_corpus(CORPORA[corpus], cache)}\n")
    return 0


def fetch_missing(*, model: str, corpora: Iterable[str], cache: Path) -> None:
    """Fetches the model and the corpora where their names are ones that can be fetched and they are not here yet.

    Raises: SetupError where they cannot be had.
    """
    from refract.backends._source import is_hub_name

    if model in FETCHABLE and not Path(model).exists() and not model_path(cache, model).is_file():
        _fetch_model(FETCHABLE[model], cache)
    elif is_hub_name(model):
        _fetch_from_hub(model)
    for corpus in dict.fromkeys(corpora):
        if corpus in CORPORA and not Path(corpus).exists() and not corpus_path(cache, corpus).is_file():
            _fetch_corpus(CORPORA[corpus], cache)


def _known(kind: str, name: str, known: Iterable[str]) -> str:
    names = list(known)
    if name not in names:
        hint = suggestion(name, names) or _HINT
        raise UsageError(f"no {kind} {name} to fetch, expected {' or '.join(names)}", hint=hint)
    return name


def _fetch_model(model: Fetchable, cache: Path) -> Path:
    from refract.data.fetch import fetch

    fetched = fetch(model, cache, say=say)
    say(f"{model.title} is {'here, verified' if fetched.downloaded else 'already here'} (licence: {model.licence})")
    if model.terms:
        say(model.terms)
    return fetched.path


def _fetch_from_hub(name: str) -> Path:
    from refract.backends._source import fetch_from_hub

    say(f"fetching {name} from the Hugging Face hub")
    return fetch_from_hub(name)


def _fetch_corpus(corpus: FetchableCorpus, cache: Path) -> Path:
    from refract.data.fetch_corpus import fetch_corpus

    fetched = fetch_corpus(corpus, cache, say=say)
    state = "here, verified" if fetched.downloaded else "already here"
    say(f"{corpus.title} is {state} (licence: {corpus.licence}); use it with --corpus {corpus.name}")
    return fetched.path


def _listing(cache_dir: Path | None) -> str:
    from refract.run.cache import cache_folder

    cache = cache_folder(cache_dir)
    rows = [("NAME", "MB", "LICENCE", "HERE", "WHAT")]
    for model in FETCHABLE.values():
        here = "yes" if model_path(cache, model.name).is_file() else "no"
        rows.append((model.name, f"{model.size_bytes / 1e6:.0f}", model.licence, here, f"model: {model.title}"))
    for corpus in CORPORA.values():
        here = "yes" if corpus_path(cache, corpus.name).is_file() else "no"
        rows.append((corpus.name, f"{corpus.size_bytes / 1e6:.0f}", corpus.licence, here, f"corpus: {corpus.title}"))
    return "".join(f"{n:<11}{mb:>4}  {licence:<13}{here:<6}{title}\n" for n, mb, licence, here, title in rows)
