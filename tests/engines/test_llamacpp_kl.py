"""KL per position from the real llama-perplexity: exact on itself, the tool's own mean, and the order of formats."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from socket import socket

import numpy as np
import numpy.typing as npt
import pytest

from refract.axes.windows import cut_windows
from refract.backends._process import child
from refract.backends._tokenizer import load_tokenizer
from refract.backends.llamacpp.find import clean_environment, find_binaries
from refract.backends.llamacpp.logits_file import MAGIC, scored_start
from refract.backends.llamacpp.perplexity import Perplexity
from refract.backends.llamacpp.perplexity_log import printed_mean_kld
from refract.backends.llamacpp.perplexity_text import forced_text
from refract.data.corpus import load_corpus
from refract.errors import EngineError
from refract.run.blobs import BlobFolder
from refract.run.cache import cache_folder
from refract.stats.divergence import kl_full
from refract.work import BlobRef, Divergence, TokenIds, Window

SIZE, COUNT = 256, 4
Tool = Callable[..., Perplexity]


@pytest.fixture(scope="module")
def binaries(llamacpp: None) -> Path:
    """The folder of llama.cpp's programs."""
    return find_binaries(None, cache_folder()).server.parent


@dataclass(frozen=True)
class Bench:
    """A model, its windows, their bases, and what comparing under a configuration gives."""

    tool: Perplexity
    windows: list[Window]
    bases: list[BlobRef]

    def under(self, k: str, v: str, **env: str) -> Perplexity:
        flags = ("-ctk", k, "-ctv", v, *self.tool.flags)
        return replace(self.tool, flags=flags, env={**self.tool.env, **env})

    def compare(self, k: str, v: str, **env: str) -> Divergence:
        """All windows' positions in one."""
        found = [d for _, d in self.under(k, v, **env).compare(self.windows, self.bases)]
        return replace(
            found[0],
            **{
                name: np.concatenate([getattr(d, name) for d in found])
                for name in Divergence.__dataclass_fields__
                if name != "estimator"
            },
        )

    def printed_mean(self, k: str, v: str, folder: Path) -> float:
        """What llama-perplexity itself prints, against the same bases."""
        files = [self.tool.blobs.path(ref).read_bytes() for ref in self.bases]
        vocab = np.frombuffer(files[0][12:16], np.int32)[0]
        sizes = np.array([SIZE, vocab, len(files)], np.int32).tobytes()
        head = 20 + 4 * SIZE
        (folder / "base").write_bytes(
            MAGIC + sizes + b"".join(f[20:head] for f in files) + b"".join(f[head:] for f in files)
        )
        tool = self.under(k, v)
        command = [str(tool.binary), "-m", str(tool.model), "-c", str(SIZE), "-b", str(SIZE), *tool.flags]
        base = ["--kl-divergence", "--kl-divergence-base", str(folder / "base")]
        done = subprocess.run([*command, *base], env=dict(tool.env), capture_output=True, text=True, check=False)
        return printed_mean_kld(done.stdout + done.stderr)


@pytest.fixture(scope="module")
def benches(binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Bench]:
    """A bench for a model, made once."""

    @cache
    def made(model: Path) -> Bench:
        tokenizer = load_tokenizer(model, cache_folder())
        cut = cut_windows(load_corpus(None), tokenizer, count=COUNT, size=SIZE)
        windows = [Window(tokens=w.tokens, start=scored_start(SIZE)) for w in cut]
        tool = Perplexity(
            binary=binaries / "llama-perplexity",
            model=model,
            tokenizer=tokenizer,
            blobs=BlobFolder(tmp_path_factory.mktemp("blobs")),
            flags=("-t", "2", "-fit", "off"),
            env=clean_environment(os.environ),
        )
        bases = dict(tool.write_bases(windows))
        return Bench(tool, windows, [bases[w] for w in windows])

    return made


def test_the_reference_against_itself_is_exactly_zero(benches: Callable[[Path], Bench], smollm2_f16: Path) -> None:
    found = benches(smollm2_f16).compare("f16", "f16")
    assert len(found) == COUNT * (SIZE // 2 - 1)
    assert (found.kl == 0).all()
    assert found.same_top.all()
    assert (found.token_nll_delta == 0).all()
    assert 1.5 < found.reference_nll.mean() < 5


def test_formats_come_in_order_and_rotation_off_is_seen(benches: Callable[[Path], Bench], smollm2_f16: Path) -> None:
    bench = benches(smollm2_f16)
    kinds = [("q8_0", "q8_0"), ("q5_1", "q5_1"), ("q8_0", "q4_0"), ("q4_0", "q4_0")]
    means = {kind: float(bench.compare(*kind).kl.mean()) for kind in kinds}
    means["rotation off"] = float(bench.compare("q4_0", "q4_0", LLAMA_ATTN_ROT_DISABLE="1").kl.mean())
    print(means)
    assert 0 < means["q8_0", "q8_0"] < means["q5_1", "q5_1"] < means["q4_0", "q4_0"]
    assert means["q8_0", "q8_0"] < means["q8_0", "q4_0"] < means["q4_0", "q4_0"]
    assert means["rotation off"] > 2 * means["q4_0", "q4_0"]


@pytest.mark.parametrize(
    ("weights", "kind"), [("smollm2_f16", "q8_0"), ("smollm2_f16", "q4_0"), ("smollm2", "q4_0"), ("gemma3", "q8_0")]
)
def test_the_mean_is_what_the_tool_prints(
    benches: Callable[[Path], Bench], weights: str, kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    bench = benches(request.getfixturevalue(weights))
    ours = float(bench.compare(kind, kind).kl.mean(dtype=np.float64))
    assert ours == pytest.approx(bench.printed_mean(kind, kind, tmp_path), rel=1e-3, abs=6e-7)  # six decimals printed


def test_single_positions_are_those_of_the_server(benches: Callable[[Path], Bench], smollm2_f16: Path) -> None:
    """The server's float32 distributions; what the tool leaves out below e^-16 is up to 2.4e-4 of a position."""
    bench = benches(smollm2_f16)
    window = bench.windows[1]
    places = [window.start, 150, 160, 200, 240, SIZE - 1]
    sides = []
    for kind in ("f16", "q4_0"):
        with server(bench.under(kind, kind)) as url:
            sides.append(np.stack([distribution(url, window.tokens[:place]) for place in places]))
    found = dict(bench.under("q4_0", "q4_0").compare(bench.windows, bench.bases))[window]
    at = np.array(places) - window.start
    ours = found.kl[at]
    assert ours == pytest.approx(kl_above_cut(*sides), abs=1.5e-4)
    assert ours == pytest.approx(kl_full(*sides), abs=3e-4)
    assert ours.max() > 1e-2
    logprobs = [side[range(len(places)), [window.tokens[place] for place in places]] for side in sides]
    assert found.reference_nll[at] == pytest.approx(-logprobs[0], abs=3e-4)
    assert found.token_nll_delta[at] == pytest.approx(logprobs[0] - logprobs[1], abs=4e-4)
    assert found.same_top[at].tolist() == (sides[0].argmax(1) == sides[1].argmax(1)).tolist()


def kl_above_cut(log_p: npt.NDArray[np.float32], log_q: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """KL as llama-perplexity defines it: each side no lower than 16 nats below its peak, the sum over p > e^-16."""
    p, q = (np.maximum(x, x.max(axis=1, keepdims=True) - 16.0).astype(np.float64) for x in (log_p, log_q))
    return np.where(p > -16.0, np.exp(p) * (p - q), 0.0).sum(axis=1)


def test_a_wrong_option_is_one_clear_error(benches: Callable[[Path], Bench], smollm2_f16: Path) -> None:
    bench = benches(smollm2_f16)
    with pytest.raises(EngineError, match="incomplete logits file") as caught:
        bench.compare("q7_0", "f16")
    print(caught.value.message, caught.value.hint)
    assert "q7_0" in caught.value.message


@pytest.mark.parametrize("weights", ["smollm2", "gemma3"])
@pytest.mark.parametrize(("count", "size"), [(32, 512), (8, 512), (32, 256)])
def test_planned_windows_are_one_text_without_filling(
    weights: str, count: int, size: int, request: pytest.FixtureRequest
) -> None:
    tokenizer = load_tokenizer(request.getfixturevalue(weights), cache_folder())
    corpus = load_corpus(None)
    begun = time.perf_counter()
    cut = cut_windows(corpus, tokenizer, count=count, size=size)
    assert time.perf_counter() - begun < 2  # 0.1 s on an idle machine
    windows = [Window(tokens=w.tokens, start=scored_start(size)) for w in cut]
    assert forced_text(windows, tokenizer).chunks == tuple(range(count))
    some = windows[1::3]
    assert [c for c in forced_text(some, tokenizer).chunks if c is not None] == list(range(len(some)))


@contextmanager
def server(tool: Perplexity) -> Iterator[str]:
    """The address of a llama-server of the same model and options."""
    with closing(socket()) as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    places = ["-m", str(tool.model), "--host", "127.0.0.1", "--port", str(port), "-c", str(SIZE), "-np", "1"]
    with child([str(tool.binary.with_name("llama-server")), *places, *tool.flags], env=tool.env) as process:
        while not healthy(url):
            assert process.status is None, process.last_words
            time.sleep(0.1)
        yield url


def healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5):
            return True
    except OSError:
        return False


def distribution(url: str, prompt: TokenIds) -> npt.NDArray[np.float64]:
    """Log-probabilities (V,) of what follows, each token's."""
    asked = {"prompt": prompt, "n_predict": 1, "n_probs": 1 << 20, "temperature": 0, "cache_prompt": False}
    request = urllib.request.Request(f"{url}/completion", json.dumps(asked).encode())
    with urllib.request.urlopen(request, timeout=60) as answer:
        listed = json.load(answer)["completion_probabilities"][0]["top_logprobs"]
    found = np.full(1 + max(entry["id"] for entry in listed), -np.inf)
    found[[entry["id"] for entry in listed]] = [entry["logprob"] for entry in listed]
    return found
