"""The MLX engine: Apple GPUs and Linux CPUs, KV caches of our own."""

from __future__ import annotations

import gc
import importlib.metadata
import platform
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from refract.backends._models import Models
from refract.backends._options import refuse_no_number, refuse_other_word, refuse_unknown
from refract.backends._tokenizer import HFTokenizer
from refract.backends.mlx.blas import Blas, prepare_blas
from refract.backends.mlx.eviction import refuse_combination
from refract.engine import Blobs, Capability, Check, Identity, LoadSpec, Session
from refract.errors import KVUnsupportedError, MissingPackageError
from refract.formats import unsupported
from refract.kv import Format, KVConfig

if TYPE_CHECKING:
    from refract.backends.mlx.load import Runtime

_OPTIONS: Mapping[str, str] = {
    "batch": "32",  # sequences of up to 512 tokens decoded together on a lane
    "chunk": "128",  # tokens a prefill pass takes; longer ones waste more masked attention
    "dtype": "auto",  # float32 on a CPU, where it is fastest; the model's own on a GPU
}
_BY_PREFILL = frozenset({Capability.KL_PREFILL, Capability.KL_DEEP})
# What acts where one token is decoded after the other, with its value when it is off
_PARTIAL: Mapping[str, str] = {"evict": "none", "select": "none", "sparsev": "0"}
_DTYPES = ("auto", "float32", "float16", "bfloat16")
_MOST: Mapping[str, int] = {"batch": 1024, "chunk": 1 << 16}
# On a CPU 256 and 512 tokens a pass give the same bits as each other, and others than 128.
_CONTROL: Mapping[str, str] = {"batch": "8", "chunk": "512"}


# What is read of the cache when part of it is: counted on this text
_TRIAL_TEXT = (
    "A river is older than the names on its bridges. In spring it carries what the hills let go: gravel, leaves, a"
    " fence post, now and then a boat whose rope was tied in haste. The people of the lower town keep a list of such"
    " things. They write down the day, the height of the water against the third step of the quay, and what came past."
    " The list began with a flood that took the mill, and nobody has found a reason to stop. A clerk once asked what it"
    " was for. The oldest of the keepers answered that a question about the river is always asked too late, and that on"
    " such a day one is glad of whoever looked before. In the third year of the drought the list had one entry for the"
    " whole summer: a heron, standing where the ferry used to land, and below it, in another hand, the word still. When"
    " the rain came back the two men who had written it stood on the step together, and for an hour neither wrote."
)


class MLXEngine:
    """Runs models with mlx-lm, which is imported when a session is loaded and not before."""

    name = "mlx"
    control_by_default = False  # in float32 its kernels move the reference by about 1e-7 nats

    def __init__(self, options: Mapping[str, str] | None = None, cache_dir: Path | None = None) -> None:
        """Raises: UsageError for an option this engine does not have or a value it cannot take."""
        self._options = dict(_OPTIONS) | dict(options or {})
        self._cache_dir = cache_dir
        self._models = Models("mlx-lm", cache_dir)
        _check_options(self._options)

    @cached_property
    def blas(self) -> Blas:
        """The BLAS that mlx runs on, loaded by the first call, which must come before mlx is imported."""
        return prepare_blas()

    def capabilities(self, kv: KVConfig) -> frozenset[Capability]:
        """Everything where prefill reads what the cache stores, so that both KL protocols see the compression.

        A format over groups of tokens would tell a token of a prompt of those that follow in its group; what evicts or
        reads a part does so token by token.
        """
        grouped = any(_over_tokens(side) for side in (kv.k, kv.v))
        raw = grouped or kv.get("residual") != "0" or kv.get("prefill") == "raw"
        partial = any(kv.get(key) != idle for key, idle in _PARTIAL.items())
        return frozenset(Capability) - (_BY_PREFILL if raw or partial else frozenset())

    def check(self, model: str) -> list[Check]:
        """Packages, BLAS, device and the model's files."""
        checks = [_package("mlx"), _package("mlx-lm"), _package("gguf"), _package("tokenizers")]
        slow = self.blas.warning
        checks.append(
            Check(
                name="blas",
                status="warn" if slow else "ok",
                message=slow or self.blas.name,
                fix="pip install mkl" if slow else None,
            )
        )
        source = self._models.source(model)
        message = f"{source.name}: {source.architecture}, {source.layers} layers, head dimension {source.head_dim}"
        return [*checks, Check(name="model", status="ok", message=message)]

    def check_kv(self, model: str, kv: KVConfig) -> None:
        """Raises: KVUnsupportedError naming what the backend, the head dimension or the layer count does not allow."""
        source = self._models.source(model)
        if reasons := unsupported(kv, self.name):
            raise KVUnsupportedError(f"{kv}: {reasons[0]}", hint="see: refract formats --backend mlx")
        for side, boundary in zip("kv", kv.boundary, strict=True):
            if 2 * boundary >= source.layers:
                raise KVUnsupportedError(
                    f"boundary_{side}={boundary} leaves none of {source.name}'s {source.layers} layers compressed",
                    hint=f"use at most {(source.layers - 1) // 2}",
                )
        kv.own_layers(source.layers)
        refuse_combination(kv)
        if kv.get("evict") != "none" and any(_over_tokens(side) for side in (kv.k, kv.v)):
            raise KVUnsupportedError(
                f"{kv}: a format over groups of tokens cannot give up one of them",
                hint="leave axis=channel or evict out",
            )
        self._check_codecs(kv, source.head_dim)

    def tokenizer(self, model: str) -> HFTokenizer:
        """The model's tokenizer; what is built from a GGUF file is cached."""
        return self._models.tokenizer(model)

    def context_length(self, model: str) -> int:
        """The longest sequence the model was trained for."""
        return self._models.source(model).context_length

    def identify(self, spec: LoadSpec) -> Identity:
        """What answers depend on: packages, BLAS, device and batching as well as weights and KV configuration.

        Raises: UsageError for an option in `spec` that this engine does not have.
        """
        return Identity(
            engine=self.name,
            build=f"{_version('mlx')} (mlx-lm {_version('mlx-lm')})",
            model=self._models.fingerprint(spec.model),
            kv=str(spec.kv),
            max_tokens=0,  # caches grow as needed: the run's longest sequence changes no answer
            options={**self._effective(spec), "blas": self.blas.name, "device": _device()},
        )

    def control_options(self, options: Mapping[str, str], kv: KVConfig) -> Mapping[str, str]:
        """Another batch width and prefill chunk: the shapes of its matrix products, and so the order of their sums."""
        own = self._options | dict(options)
        return {name: value if own[name] != value else _OPTIONS[name] for name, value in _CONTROL.items()}

    def describe(self, model: str) -> Mapping[str, str | int]:
        """Architecture, layers, head dimension, how the weights are stored, and what they run on."""
        return self._models.describe(model, blas=self.blas.name, device=_device())

    def load(self, spec: LoadSpec, blobs: Blobs) -> AbstractContextManager[Session]:
        """A session under `spec.kv`.

        Raises: ModelError, KVUnsupportedError, ConfigMismatchError, MissingPackageError.
        """
        return self._session(spec, blobs)

    @contextmanager
    def _session(self, spec: LoadSpec, blobs: Blobs) -> Iterator[Session]:
        self.check_kv(spec.model, spec.kv)
        runtime, tokenizer = self._runtime(), self.tokenizer(spec.model)
        session = runtime.open_session(
            self._models.source(spec.model),
            spec,
            blobs,
            eos_ids=tokenizer.eos_ids,
            trial=tokenizer.encode(_TRIAL_TEXT, add_special=True),
            options=self._effective(spec),
        )
        try:
            yield session
        finally:
            del session
            gc.collect()
            runtime.free_memory()

    def _effective(self, spec: LoadSpec) -> dict[str, str]:
        """Every option with its value: the spec's own over those the engine was made with."""
        options = self._options | dict(spec.options)
        _check_options(options)
        return options

    def _check_codecs(self, kv: KVConfig, head_dim: int) -> None:
        with self._mlx():
            from refract.backends.mlx.codecs import side_codecs
        side_codecs(kv, head_dim)

    def _runtime(self) -> Runtime:
        with self._mlx():
            from refract.backends.mlx.load import Runtime
        return Runtime()

    @contextmanager
    def _mlx(self) -> Iterator[None]:
        """Where mlx is imported: after the BLAS is in place."""
        self.blas  # noqa: B018  # loads it
        try:
            yield
        except ImportError as error:
            raise MissingPackageError(
                f"the mlx backend cannot be imported: {error}", hint="pip install 'refract-kv[mlx]'"
            ) from None


def _over_tokens(format_: Format) -> bool:
    """Whether the format codes several tokens together."""
    options = {option.name for option in format_.spec.options}
    return "axis" in options and format_.option("axis") == "channel"


def _check_options(options: Mapping[str, str]) -> None:
    refuse_unknown("mlx", options, list(_OPTIONS))
    for name, most in _MOST.items():
        if name in options:
            refuse_no_number(name, options[name], most=most, default=_OPTIONS[name])
    refuse_other_word("dtype", options.get("dtype", "auto"), _DTYPES)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise MissingPackageError(
            f"the mlx backend needs the package {package}", hint="pip install 'refract-kv[mlx]'"
        ) from None


def _package(package: str) -> Check:
    try:
        return Check(name=package, status="ok", message=_version(package))
    except MissingPackageError as error:
        return Check(name=package, status="fail", message=error.message, fix=error.hint)


def _device() -> str:
    """What kind of processor runs the model; part of the identity, since kernels differ in their last bits."""
    return f"{platform.system()} {platform.machine()}"
