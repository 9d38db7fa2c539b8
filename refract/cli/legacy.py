"""The option names of refract-llm 0.3, for people who come from it: the same words in ours, or a hint.

Only names that this program has no option of its own for are translated. `--full` means something else here, all
prompts and not all axes, which is said when it stands beside one of the old names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from refract.errors import UsageError

_COMMANDS = frozenset({"score", "rescore", "repeatability"})
_AXES = {"--axis-rniah": "rniah", "--axis-plad": "plad"}
_SKIPPED = {"--skip-gtm": "trajectory", "--skip-kld": "kld"}
_DEFAULT_AXES = ("trajectory", "kld")
_LAYERS = frozenset({"-ngl", "--n-gpu-layers"})
_HINTS = {
    "--out-dir": "repeatability writes one file: --json-out FILE",
    "--axis-a": "axis A is trajectory, and gtm is gone: --axes names what is measured",
}


def translated(words: Sequence[str], note: Callable[[str], None]) -> list[str]:
    """`words` with the names of refract-llm replaced by ours; `note` gets a line for each replacement.

    Raises: UsageError, with what to use instead, for a name without a counterpart.
    """
    at = next((i for i, word in enumerate(words) if not word.startswith("-")), len(words))
    if at == len(words) or words[at] not in _COMMANDS:
        return list(words)
    found = _Translation(note)
    kept = list(found.kept(words[at + 1 :]))
    added = found.added(kept)
    if found.said and "--full" in kept:
        note("--full takes all prompts here; --axes trajectory,kld,rniah,plad measures all axes")
    return [*words[: at + 1], *found.without(kept), *added]


class _Translation:
    """One command line on its way: what has been taken out of it so far."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._asked: list[str] = []
        self._skipped: list[str] = []
        self._names: list[str] = []
        self._layers: str | None = None
        self._longest: int | None = None
        self._replaced: set[str] = set()
        self.said = False

    def kept(self, words: Sequence[str]) -> Iterator[str]:
        """The words that are not refract-llm's, and ours in place of those that have one word for it."""
        rest = iter(words)
        for word in rest:
            name, _, value = word.partition("=")
            if name == "-c":
                ctx = _value(name, value, rest)
                self._say("-c", f"--ctx {ctx}")
                yield f"--ctx={ctx}"
            elif name in _AXES or name in _SKIPPED:
                (self._asked if name in _AXES else self._skipped).append((_AXES | _SKIPPED)[name])
                self._names.append(name)
            elif name in _LAYERS:
                self._layers = _value(name, value, rest)
            elif name == "--rniah-ctx-max":
                self._longest = _whole(name, _value(name, value, rest))
            elif name == "--no-auto-fetch":
                self._note("--no-auto-fetch is not needed: nothing is downloaded without --fetch")
            elif name == "--no-progress":
                self._say(name, "--progress none")
                yield "--progress=none"
            elif name in _HINTS and _value(name, value, rest) != "trajectory":
                raise UsageError(f"{name} is an option of refract-llm", hint=_HINTS[name])
            elif name not in _HINTS:
                yield word

    def added(self, kept: Sequence[str]) -> list[str]:
        """The words for what several old names say together."""
        return [*self._axes(kept), *self._backend(kept), *self._gpu_layers(kept), *self._lengths(kept)]

    def without(self, kept: Sequence[str]) -> list[str]:
        """The kept words less the options whose values were merged into the added ones."""
        out, rest = [], iter(kept)
        for word in rest:
            name, equals, _ = word.partition("=")
            if name not in self._replaced:
                out.append(word)
            elif not equals:
                next(rest, None)
        return out

    def _axes(self, kept: Sequence[str]) -> list[str]:
        if not self._asked and not self._skipped:
            return []
        if _given("--axes", kept) is not None:
            raise UsageError(f"--axes names what is measured, and so does {self._names[0]}", hint="keep --axes")
        axes = [axis for axis in (*_DEFAULT_AXES, *dict.fromkeys(self._asked)) if axis not in self._skipped]
        if not axes:
            raise UsageError("--skip-gtm and --skip-kld leave nothing to measure", hint="leave one of them out")
        self._say(", ".join(self._names), f"--axes {','.join(axes)}")
        return [f"--axes={','.join(axes)}"]

    def _backend(self, kept: Sequence[str]) -> list[str]:
        """The engine that --backend auto would have chosen, by what the model is."""
        if _given("--backend", kept) != "auto":
            return []
        name = "llamacpp" if (_given("--model", kept) or "").lower().endswith(".gguf") else "mlx"
        self._replaced.add("--backend")
        self._say("--backend auto", f"--backend {name}")
        return [f"--backend={name}"]

    def _gpu_layers(self, kept: Sequence[str]) -> list[str]:
        if self._layers is None:
            return []
        own = _given("--llama-extra-flags", kept)
        self._replaced.add("--llama-extra-flags")
        flags = f"-ngl {self._layers}" if own is None else f"{own} -ngl {self._layers}"
        self._say("-ngl", f"--llama-extra-flags '{flags}'")
        return [f"--llama-extra-flags={flags}"]

    def _lengths(self, kept: Sequence[str]) -> list[str]:
        """The retrieval lengths up to --rniah-ctx-max."""
        if self._longest is None:
            return []
        lengths = _given("--rniah-lengths", kept)
        if lengths is not None:
            fitting = [
                part for part in lengths.split(",") if not part.strip().isdecimal() or int(part) <= self._longest
            ]
            name, value = "--rniah-lengths", ",".join(fitting)
        else:
            up_to = _given("--rniah-up-to", kept)
            shortest = self._longest if up_to is None or not up_to.isdecimal() else min(self._longest, int(up_to))
            name, value = "--rniah-up-to", str(shortest)
        if not value:
            raise UsageError(f"--rniah-ctx-max {self._longest} leaves none of --rniah-lengths", hint="raise it")
        self._replaced.add(name)
        self._say("--rniah-ctx-max", f"{name} {value}")
        return [f"{name}={value}"]

    def _say(self, old: str, new: str) -> None:
        self.said = True
        self._note(f"refract-llm's {old}: read as {new}")


def _value(name: str, value: str, rest: Iterator[str]) -> str:
    """The option's value: what follows its =, or the next word."""
    found = value or next(rest, "")
    if not found:
        raise UsageError(f"{name}: expected one argument", hint="refract score --help lists the options")
    return found


def _whole(name: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(
            f"{name}: expected a whole number of at least 1, found {text!r}", hint=f"for example {name} 8192"
        )
    return int(text)


def _given(name: str, words: Sequence[str]) -> str | None:
    """The value of an option among the words, the last one where it is repeated."""
    found = None
    for i, word in enumerate(words):
        head, equals, value = word.partition("=")
        if head == name:
            found = value if equals else next(iter(words[i + 1 : i + 2]), "")
    return found
