"""From parsed arguments to the values a run is made of; everything a user can get wrong is refused here."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from refract.axes import AXES
from refract.axes.base import Axis
from refract.cli import presets
from refract.cli.engine_options import engine_options, with_sides
from refract.cli.parser import suggestion
from refract.cli.presets import Preset
from refract.cli.thresholds import Thresholds
from refract.data.corpora import CORPORA, corpus_path
from refract.data.corpus import load_corpus
from refract.data.models import DEFAULT_MODEL, FETCHABLE, model_path
from refract.data.prompts import load_prompts
from refract.data.promptset import PromptSet, content_sha256
from refract.errors import ModelError, SetupError, UsageError
from refract.kv import KVConfig, parse_kv
from refract.report import plain
from refract.run.cache import cache_folder
from refract.run.spec import RunSpec


def run_spec(args: argparse.Namespace) -> RunSpec:
    """The run that the arguments ask for; `model` is still as it was named (see `model_place`).

    Raises:
        UsageError: something in them cannot mean anything; PromptsError and CorpusError name the file.
    """
    preset = presets.PRESETS["quick" if args.quick else "full" if args.full else "default"]
    names = axis_names(args.axes or presets.AXES)
    refuse_thresholds(args, names)
    reference, others = kv_config("--reference", args.reference), candidates(args.candidate, floor=args.measure_floor)
    return RunSpec(
        model=args.model or DEFAULT_MODEL,
        reference=reference,
        candidates=others,
        axes=axes(names, args, preset),
        prompts=prompts(args.prompts, preset, args.max_prompts),
        corpus=load_corpus(corpus_place(args.corpus, args.cache_dir)),
        n_predict=args.n_predict,
        seed=args.seed,
        options=with_sides(engine_options(args), reference, others),
        measure_floor=args.measure_floor,
        control="all" if args.control else "none" if args.no_control else None,
        explain=args.explain or ("sides" if _explained_unasked(args, preset) else "none"),
        required=frozenset(names if args.axes else ()),
    )


def _explained_unasked(args: argparse.Namespace, preset: Preset) -> bool:
    """Whether a low score is attributed to a side though nobody asked: for one candidate and few windows."""
    cheap = (args.chunks or preset.chunks) <= presets.EXPLAIN_CHUNKS
    return cheap and len(args.candidate) == 1 and not args.no_explain


def model_place(name: str, cache: Path) -> str:
    """What to load: the file of a fetched model for its short name, any other name as it is.

    Raises:
        SetupError: a model that has to be fetched first, or a name that no file system takes.
    """
    _refuse_impossible_path(name)
    if name not in FETCHABLE or Path(name).exists():
        return name
    path = model_path(cache, name)
    if not path.is_file():
        which = "the default model" if name == DEFAULT_MODEL else f"the model {name}"
        raise SetupError(f"{which} is not here yet", hint=f"refract fetch --model {name}")
    return str(path)


def corpus_place(corpus: Path | None, cache_dir: Path | None) -> Path | None:
    """What to read: the text of a fetched corpus for its short name, any other path as it is.

    Raises:
        SetupError: a corpus that has to be fetched first.
    """
    name = str(corpus)
    if corpus is None or name not in CORPORA or corpus.exists():
        return corpus
    path = corpus_path(cache_folder(cache_dir), name)
    if not path.is_file():
        hint = f"refract fetch --corpus {name}, or the same command with --fetch"
        raise SetupError(f"the corpus {name} is not here yet", hint=hint)
    return path


def _refuse_impossible_path(name: str) -> None:
    try:
        Path(name).expanduser().exists()
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ModelError(f"--model {plain.line(name, 80)}: {reason}", hint="check the path") from None


def kv_config(option: str, text: str) -> KVConfig:
    """The configuration an option gives. Raises: KVSyntaxError and KVUnsupportedError, which name the option."""
    try:
        return parse_kv(text)
    except UsageError as error:
        raise type(error)(f"{option}: {error.message}", hint=error.hint) from None


def candidates(texts: Sequence[str], *, floor: bool) -> tuple[KVConfig, ...]:
    """The candidates' configurations; none is enough when only the floor is asked for."""
    if not texts and not floor:
        raise UsageError("there is no candidate", hint="name one, for example: --candidate ctk=q8_0,ctv=turbo3")
    return tuple(kv_config("--candidate", text) for text in texts)


def axis_names(text: str) -> tuple[str, ...]:
    """The axes in a comma-separated list. Raises: UsageError for an unknown or repeated one."""
    names = tuple(name.strip().lower() for name in text.split(","))
    for name in names:
        if name not in AXES:
            hint = suggestion(name, AXES) or f"the axes are {', '.join(AXES)}"
            raise UsageError(f"--axes: unknown axis {name or 'without a name'}, expected {', '.join(AXES)}", hint=hint)
    if len(set(names)) < len(names):
        raise UsageError(f"--axes: an axis is named twice in {text}", hint="name each once")
    return names


def axes(names: Iterable[str], args: argparse.Namespace, preset: Preset) -> tuple[Axis, ...]:
    """The axes with their knobs."""
    knobs = {
        "kld": {"chunks": args.chunks or preset.chunks, "ctx": args.ctx, "depth": args.depth},
        "rniah": rniah_knobs(args),
    }
    return tuple(AXES[name](**knobs.get(name, {})) for name in names)


def rniah_knobs(args: argparse.Namespace) -> dict[str, Any]:
    """The knobs of the axis rniah that are not its own defaults."""
    lengths, up_to = args.rniah_lengths, args.rniah_up_to
    if lengths and up_to:
        raise UsageError("--rniah-lengths names every length, --rniah-up-to the longest", hint="keep one of them")
    given: dict[str, Any] = {"lengths": lengths, "positions": args.rniah_positions, "trials": args.rniah_trials}
    if args.rniah_haystack is not None:
        given["haystack"] = load_corpus(corpus_place(args.rniah_haystack, args.cache_dir))
    return {"up_to": up_to or presets.RNIAH_UP_TO} | {name: value for name, value in given.items() if value}


def prompts(path: Path | None, preset: Preset, most: int | None) -> PromptSet:
    """The preset's tier of the prompts, no more than `most` of them.

    The bundled file alternates its categories, so its first prompts are a fair sample of all.
    """
    chosen = load_prompts(path).tier(preset.tier)
    kept = chosen.prompts[:most]
    return replace(chosen, prompts=kept, sha256=content_sha256(kept))


def refuse_thresholds(args: argparse.Namespace, names: Sequence[str]) -> None:
    """Raises: UsageError for a threshold on something that the axes asked for cannot give."""
    if args.fail_under is not None and len(names) < 2:
        hint = "name two axes or more, or use --fail-over-kld"
        raise UsageError(f"--fail-under needs a composite, and the axis {names[0]} alone gives none", hint=hint)
    if args.fail_over_kld is not None and "kld" not in names:
        raise UsageError("--fail-over-kld needs the axis kld", hint=f"use --axes {','.join(names)},kld")


def thresholds(args: argparse.Namespace, candidates: Sequence[KVConfig]) -> Thresholds:
    """What the candidates must meet.

    Raises: UsageError for a comparator without a margin or a margin without a comparator, and for a comparator that is
        no candidate of this run, or the only one.
    """
    plain = Thresholds(fail_under=args.fail_under, fail_over_kld=args.fail_over_kld)
    if (args.non_inferior_to is None) != (args.margin is None):
        lacking, given = ("--margin", "--non-inferior-to") if args.margin is None else ("--non-inferior-to", "--margin")
        raise UsageError(f"{given} needs {lacking}", hint="for example: --non-inferior-to ctk=q8_0,ctv=q8_0 --margin 2")
    if args.non_inferior_to is None:
        return plain
    comparator = str(kv_config("--non-inferior-to", args.non_inferior_to))
    names = [str(kv) for kv in candidates]
    if comparator not in names:
        hint = f"add --candidate {comparator}"
        raise UsageError(f"--non-inferior-to: {comparator} is not a candidate of this run", hint=hint)
    if len(names) < 2:
        hint = "name what is to be compared with it by another --candidate"
        raise UsageError(f"--non-inferior-to: {comparator} is the only candidate", hint=hint)
    return replace(plain, comparator=comparator, margin=args.margin)
