"""The part of `refract selftest` that runs the model: a few tokens under each configuration, and one that must lose."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from refract.axes.needles import opens_thinking
from refract.axes.windows import cut_windows
from refract.data.corpus import load_corpus
from refract.engine import Capability, Check, Engine, LoadSpec, Tokenizer
from refract.errors import RefractError
from refract.formats import FORMATS
from refract.kv import KVConfig, parse_kv
from refract.run.blobs import BlobFolder
from refract.work import (
    Answer,
    Base,
    CompareBase,
    Divergence,
    EffectiveKV,
    Failure,
    Generate,
    Generation,
    Message,
    Protocol,
    Request,
    TokenIds,
    Window,
    WriteBase,
)

TOKENS = 16
MAX_TOKENS = 512
_WINDOWS, _WINDOW_TOKENS = 2, 96
_TAIL_TOKENS = 32  # of a prompt: enough to hold a marker that the template ends with
_LEAST_LOSS = 1e-4  # nats: what a coarse format loses at least; kernels' own noise is smaller where it matters
_QUESTION = "Name three rivers of Europe."
_FIX = "try another model or format"


@dataclass(slots=True)
class _Trial:
    """A model on an engine, and what its reference left for the configurations after it."""

    engine: Engine
    model: str
    options: Mapping[str, str]
    blobs: BlobFolder
    prompt: TokenIds
    windows: tuple[Window, ...]
    bases: list[Base] = field(default_factory=list)

    def answers(self, kv: KVConfig) -> tuple[EffectiveKV, dict[Request, Answer | Failure]]:
        """What a session under `kv` allocated and answered. Raises: RefractError."""
        self.engine.check_kv(self.model, kv)
        spec = LoadSpec(model=self.model, kv=kv, max_tokens=MAX_TOKENS, options=self.options)
        with self.engine.load(spec, self.blobs) as session:
            return session.effective_kv, dict(session.run([self.generate, *self._divergence_requests(kv)]))

    def keep(self, answers: Mapping[Request, Answer | Failure]) -> None:
        """Keeps the bases that the reference wrote, in the order of the windows; answers come in any order."""
        written = {request.windows: answer for request, answer in answers.items() if isinstance(request, WriteBase)}
        found = [written.get((window,)) for window in self.windows]
        self.bases = [answer for answer in found if isinstance(answer, Base)]

    @property
    def generate(self) -> Generate:
        """The question."""
        return Generate(prompt=self.prompt, max_new_tokens=TOKENS)

    def _divergence_requests(self, kv: KVConfig) -> list[Request]:
        protocol = protocol_of(self.engine, kv)
        if protocol is None:
            return []
        if not self.bases:
            return [WriteBase(windows=(window,), protocol=protocol) for window in self.windows]
        pairs = zip(self.windows, self.bases, strict=True)
        return [CompareBase(windows=(window,), protocol=protocol, base=base.blob) for window, base in pairs]


def protocol_of(engine: Engine, kv: KVConfig) -> Protocol | None:
    """By which protocol the engine measures a divergence under `kv`, None where it does not."""
    found = engine.capabilities(kv)
    return "prefill" if Capability.KL_PREFILL in found else "decode" if Capability.KL_DECODE in found else None


def trial(
    engine: Engine, model: str, reference: KVConfig, candidate: KVConfig, *, options: Mapping[str, str]
) -> Iterator[Check]:
    """Checks of the chat template, of generation under both configurations, and of a canary that must score lower."""
    try:
        tokenizer = engine.tokenizer(model)
        prompt = tokenizer.render([Message(role="user", content=_QUESTION)])
        cut = cut_windows(load_corpus(), tokenizer, count=_WINDOWS, size=_WINDOW_TOKENS)
    except RefractError as error:
        yield failed("tokenizer", error)
        return
    yield from _template(tokenizer, prompt)
    # the half that llama-perplexity scores, so that every engine takes them
    windows = tuple(Window(tokens=window.tokens, start=len(window.tokens) // 2 + 1) for window in cut)
    with TemporaryDirectory(prefix="refract-", ignore_cleanup_errors=True) as folder:
        running = _Trial(engine, model, options, BlobFolder(Path(folder)), prompt, windows)
        check, found = _generation(running, reference)
        yield check
        running.keep(found)
        unkept = _why_not(found, "the engine gave none")
        check, found = _generation(running, candidate)
        yield check
        if len(running.bases) == len(windows):
            yield _canary(running, (reference, candidate), _mean_kl(found))
        elif protocol_of(engine, reference) is not None and check.status == "ok":
            message = f"no distributions of the reference to compare with: {unkept}"
            yield Check(name="canary", status="fail", message=message, fix="run it again with --debug and report it")


def _template(tokenizer: Tokenizer, prompt: TokenIds) -> Iterator[Check]:
    """Whether there is a chat template, and whether answers begin with a thinking part."""
    if not tokenizer.has_chat_template:
        message = "none: a base model, prompts are continued as they are"
        yield Check(name="chat template", status="ok", message=message)
        return
    yield Check(
        name="chat template", status="ok", message=f"the model's own, {len(prompt)} tokens for a short question"
    )
    if opens_thinking(tokenizer.decode(prompt[-_TAIL_TOKENS:])):
        message = "the template opens a thinking part: short answers may end before the thinking does"
        yield Check(
            name="thinking", status="warn", message=message, fix="give answers room with --n-predict 512 or more"
        )
    else:
        yield Check(name="thinking", status="ok", message="the template opens no thinking part")


def _generation(running: _Trial, kv: KVConfig) -> tuple[Check, Mapping[Request, Answer | Failure]]:
    """Whether the model generates under a configuration, and what the engine allocated for it; with all answers."""
    started = time.perf_counter()
    try:
        effective, answers = running.answers(kv)
    except RefractError as error:
        return failed(f"{kv}", error), {}
    answer = answers.get(running.generate, Failure(kind="silence", message="the engine gave no answer"))
    if not isinstance(answer, Generation) or len(answer.tokens) <= (answer.stop == "eos"):
        said = answer.message if isinstance(answer, Failure) else "the engine generated nothing"
        return Check(name="generation", status="fail", message=f"{kv}: {said}", fix=_FIX), answers
    seconds = time.perf_counter() - started
    found = f"K {effective.k}, V {effective.v}, {effective.layers_compressed} of {effective.layers} layers compressed"
    message = f"{kv}: {len(answer.tokens)} tokens in {seconds:.1f} s with loading; {found}"
    return Check(name="generation", status="ok", message=message), answers


def _canary(running: _Trial, configurations: Sequence[KVConfig], candidate: float | None) -> Check:
    """Whether the coarsest format that the engine has costs the score what it must."""
    kv = _coarsest(running, configurations)
    if kv is None:
        message = "this engine has no compressed format for this model"
        return Check(name="canary", status="warn", message=message, fix="refract formats lists what engines have")
    try:
        _, answers = running.answers(kv)
    except RefractError as error:
        return Check(name="canary", status="warn", message=f"{kv} cannot be run: {error.message}", fix=error.hint)
    loss = _mean_kl(answers)
    if loss is None:
        message = f"{kv}: {_why_not(answers, 'its divergence from the reference is not finite')}"
        return Check(name="canary", status="fail", message=message, fix="run it again with --debug and report it")
    score = 100.0 * math.exp(-loss)
    beside = "" if candidate is None else f"; {configurations[1]} scores {100.0 * math.exp(-candidate):.1f}"
    if loss < _LEAST_LOSS:
        message = f"{kv} scores {score:.2f}{beside}: the coarsest format changes nothing, so no score means anything"
        return Check(name="canary", status="fail", message=message, fix="the engine does not compress; see its log")
    message = f"{kv} scores {score:.1f} on kld, as it must{beside}"
    if candidate is not None and candidate > loss:
        message = f"{kv} scores {score:.1f} on kld, more than finer formats{beside}"
        return Check(
            name="canary", status="warn", message=message, fix="a longer run tells whether the format is broken"
        )
    return Check(name="canary", status="ok", message=message)


def _coarsest(running: _Trial, configurations: Sequence[KVConfig]) -> KVConfig | None:
    """The configuration of fewest bits that the engine takes, and that is none of those tried already."""
    stored = {name: spec.bits_per_value() for name, spec in FORMATS.items() if not spec.dense}
    for name in sorted(
        (name for name, bits in stored.items() if bits is not None), key=lambda name: (stored[name], name)
    ):
        try:
            kv = parse_kv(f"ctk={name},ctv={name}")
            running.engine.check_kv(running.model, kv)
        except RefractError:
            continue
        if kv not in configurations:
            return kv
    return None


def _mean_kl(answers: Mapping[Request, Answer | Failure]) -> float | None:
    """The mean divergence over all windows in nats; None where one is missing or not finite."""
    asked = [answer for request, answer in answers.items() if isinstance(request, CompareBase)]
    found = [answer.kl for answer in asked if isinstance(answer, Divergence)]
    if not found or len(found) < len(asked):
        return None
    mean = float(np.concatenate(found).astype(np.float64).mean())
    return max(0.0, mean) if math.isfinite(mean) else None


def _why_not(answers: Mapping[Request, Answer | Failure], otherwise: str) -> str:
    failures = [answer.message for answer in answers.values() if isinstance(answer, Failure)]
    return failures[0] if failures else otherwise


def failed(name: str, error: RefractError) -> Check:
    """The error as a check."""
    return Check(name=name, status="fail", message=error.message, fix=error.hint)
