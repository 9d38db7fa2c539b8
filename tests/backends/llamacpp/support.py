"""What llama-perplexity would write, made here, and a stand-in for the program."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

RECORDED = Path(__file__).parent / "recorded"


def coded(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Logits (N, V) as a logits file holds them (log_softmax in tools/perplexity/perplexity.cpp, b11434)."""
    vocab = logits.shape[1]
    top = logits.max(axis=1, keepdims=True)
    bottom = np.maximum(logits.min(axis=1, keepdims=True), top - 16)
    log_sum = np.log(np.exp(logits - top).sum(axis=1, keepdims=True, dtype=np.float64)).astype(np.float32)
    scale = ((top - bottom) / 65535).astype(np.float32)
    codes = np.where(logits > bottom, np.rint((logits - bottom) / np.where(scale > 0, scale, 1)), 0)
    rows = np.zeros((len(logits), 4 + 2 * ((vocab + 1) // 2)), np.uint16)
    rows[:, :4] = np.concatenate([scale, bottom - top - log_sum], axis=1).astype(np.float32).view(np.uint16)
    rows[:, 4 : 4 + vocab] = codes.astype(np.uint16)
    return rows


def fake_tool(folder: Path, body: str) -> Path:
    """A program that runs `body` with `args` (its options by name) and `out` (what it writes its logits to)."""
    file = folder / "llama-perplexity"
    file.write_text(
        f"#!{sys.executable}\n"
        "import os, signal, struct, sys, time\n"
        "args = dict(zip(sys.argv[1::2], sys.argv[2::2]))\n"
        "out = open(args['--kl-divergence-base'], 'wb')\n" + body
    )
    file.chmod(0o755)
    return file
