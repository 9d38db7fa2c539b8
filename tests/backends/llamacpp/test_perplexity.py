"""One run of llama-perplexity, against stand-ins that behave and misbehave as the real one does."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from refract.backends.llamacpp.perplexity import Perplexity, fits
from refract.backends.llamacpp.perplexity_log import check_agreement, final_perplexity, printed_mean_kld
from refract.errors import ConfigMismatchError, EngineError, SetupError
from refract.run.blobs import BlobFolder
from refract.work import Divergence, Window

from .support import RECORDED, coded, fake_tool

SIZE, VOCAB = 16, 300
POSITIONS = SIZE - 1 - SIZE // 2
Make = Callable[..., Perplexity]


class Letters:
    """Every character is a token, whose id is its code."""

    vocab_size = VOCAB
    eos_ids: frozenset[int] = frozenset()
    has_chat_template = False

    def encode(self, text: str, *, add_special: bool = False) -> tuple[int, ...]:
        return tuple(map(ord, text))

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))


def window(seed: int) -> Window:
    letters = np.random.default_rng(seed).integers(97, 123, SIZE)
    return Window(tokens=tuple(int(i) for i in letters), start=SIZE // 2 + 1)


def rows_of(window: Window, shift: float = 0.0) -> bytes:
    """The rows the stand-in writes for a window: they depend on nothing but its tokens."""
    rng = np.random.default_rng(sum(window.tokens))
    logits = (rng.standard_normal((POSITIONS, VOCAB)) + shift * np.arange(VOCAB) / VOCAB).astype(np.float32)
    return coded(logits).tobytes()


GOOD = """
text = open(args['-f']).read().removesuffix(chr(10))
size, chunks = int(args['-c']), int(args['--chunks'])
tokens = [ord(c) for c in text][: size * chunks]
out.write(b'_logits_' + struct.pack('<3i', size, 300, chunks) + struct.pack(f'<{len(tokens)}i', *tokens))
rows = open(args['-rows'], 'rb').read()
out.write(rows)
out.close()
print('[1]1.0,\\nFinal estimate: PPL = ' + args['-ppl'] + ' +/- 0.1')
"""


def perplexity_of(windows: Sequence[Window], rows: bytes) -> float:
    """What the tool would print for these rows."""
    values = np.frombuffer(rows, np.uint16).reshape(len(windows) * POSITIONS, -1)
    head = np.ascontiguousarray(values[:, :4]).view(np.float32)
    scored = [t for w in windows for t in w.tokens[w.start :]]
    own = values[np.arange(len(scored)), 4 + np.array(scored)] * head[:, 0] + head[:, 1]
    return float(np.exp(-own.mean()))


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """A Perplexity over a stand-in with the given body, which writes the rows of the windows."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))

    def made(body: str = GOOD, *, windows: Sequence[Window] = (), shift: float = 0.0, ppl: float = 0.0) -> Perplexity:
        rows = b"".join(rows_of(w, shift) for w in windows)
        (tmp_path / "rows").write_bytes(rows)
        flags = ("-rows", str(tmp_path / "rows"), "-ppl", f"{ppl or (perplexity_of(windows, rows) if rows else 1):.4f}")
        return Perplexity(
            binary=fake_tool(tmp_path, body),
            model=tmp_path / "m.gguf",
            tokenizer=Letters(),
            blobs=BlobFolder(tmp_path / "blobs"),
            flags=flags,
            silence_s=1.0,
        )

    yield made
    assert not list((tmp_path / "tmp").iterdir())


def test_a_base_is_a_logits_file_of_one_window(make: Make) -> None:
    windows = [window(i) for i in range(3)]
    tool = make(windows=windows)
    found = dict(tool.write_bases(windows))
    assert list(found) == windows
    for w, ref in found.items():
        assert ref.format == "llamacpp-logits/1"
        assert tool.blobs.path(ref).read_bytes().endswith(rows_of(w))


def test_a_side_against_itself_is_exactly_zero_and_against_another_is_not(make: Make) -> None:
    windows = [window(i) for i in range(3)]
    bases = dict(make(windows=windows).write_bases(windows))
    refs = [bases[w] for w in windows]
    same = [d for _, d in make(windows=windows).compare(windows, refs)]
    other = [d for _, d in make(windows=windows, shift=1.0).compare(windows, refs)]
    assert all((d.kl == 0).all() and len(d) == POSITIONS for d in same)
    assert all((d.kl > 0).all() and isinstance(d, Divergence) for d in other)


def test_one_window_is_followed_by_filling_that_is_not_looked_at(make: Make) -> None:
    alone = window(1)
    tool = make(windows=[alone, window(2)], ppl=1.0)
    with pytest.raises(EngineError, match="prints a perplexity of 1"):
        list(tool.write_bases([alone]))  # answered, and then the stand-in's perplexity is wrong on purpose


def test_nothing_to_do_starts_nothing(tmp_path: Path) -> None:
    tool = Perplexity(
        binary=tmp_path / "none", model=tmp_path, tokenizer=Letters(), blobs=BlobFolder(tmp_path / "blobs")
    )
    assert list(tool.write_bases([])) == []
    assert list(tool.compare([], [])) == []


def test_nothing_is_given_out_of_a_run_whose_perplexity_is_wrong(make: Make) -> None:
    windows = [window(i) for i in range(2)]
    refs = [ref for _, ref in make(windows=windows).write_bases(windows)]
    wrong = make(windows=windows, ppl=5.0)
    for answers in (wrong.write_bases(windows), wrong.compare(windows, refs)):
        with pytest.raises(EngineError, match="prints a perplexity of 5, its logits file holds"):
            next(answers)


def test_nothing_is_given_out_of_a_run_that_was_not_as_asked(make: Make) -> None:
    windows = [window(i) for i in range(2)]
    seen: list[str] = []

    def refuse(log: str) -> None:
        seen.append(log)
        raise ConfigMismatchError("another cache")

    with pytest.raises(ConfigMismatchError, match="another cache"):
        next(replace(make(windows=windows), check=refuse).write_bases(windows))
    assert "Final estimate" in seen[0]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("sys.exit(0)", "gave an incomplete logits file: it printed nothing"),
        ("print('usage: llama-perplexity [options]'); sys.exit(0)", "incomplete logits file: usage"),
        ("out.write(bytes(40))", "no such file"),
        ("out.write(b'_logits_' + struct.pack('<3i', 16, 300, 5))", "scores 5 chunks of 16 tokens, asked for 2"),
        ("out.write(b'_logits_' + struct.pack('<3i', 16, 300, 2) + bytes(128))", "reads token 0 where"),
        (GOOD.replace("out.write(rows)", "out.write(rows[:-1])"), "incomplete logits file"),
        (GOOD.replace("out.write(rows)", "out.write(rows + b'x')"), "longer than it should be"),
        (GOOD.replace("Final estimate: PPL", "PPL"), "no final perplexity"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "ended by SIGKILL"),
        ("time.sleep(60)", "gave nothing for 1 s"),
    ],
)
def test_every_way_to_fail_is_one_clear_error(make: Make, body: str, expected: str) -> None:
    windows = [window(i) for i in range(2)]
    with pytest.raises(EngineError, match=expected) as caught:
        list(make(body, windows=windows).write_bases(windows))
    assert caught.value.hint


def test_a_run_whose_last_lines_are_lost_is_asked_again(make: Make, tmp_path: Path) -> None:
    """The tool's logger does not wait for its end: every first run here prints no final perplexity."""
    windows = [window(i) for i in range(2)]
    lost = f"""
seen = {str(tmp_path / "seen")!r}
if not os.path.exists(seen):
    open(seen, 'w').close()
    print = lambda *_: None
"""
    found = dict(make(lost + GOOD, windows=windows).write_bases(windows))
    assert (tmp_path / "seen").exists()
    assert list(found) == windows


def test_a_program_that_cannot_be_started_says_so(tmp_path: Path) -> None:
    tool = Perplexity(
        binary=tmp_path / "none", model=tmp_path, tokenizer=Letters(), blobs=BlobFolder(tmp_path / "blobs")
    )
    with pytest.raises(SetupError, match="none does not exist") as caught:
        list(tool.write_bases([window(1), window(2)]))
    assert caught.value.hint


def test_a_run_that_is_given_up_gives_out_nothing_and_leaves_no_process_behind(make: Make, tmp_path: Path) -> None:
    windows = [window(i) for i in range(2)]
    body = GOOD.replace(
        "out.write(rows)", f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\nout.write(rows)"
    )
    answers = make(body + "time.sleep(60)", windows=windows).write_bases(windows)
    with pytest.raises(EngineError, match="gave nothing for 1 s"):
        next(answers)  # though both windows' logits were read
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", (tmp_path / "pid").read_text()], capture_output=True, text=True, check=False
    )
    assert state.stdout.strip()[:1] in ("", "Z")  # gone, or waiting for init to notice


def test_a_base_of_another_window_or_kind_is_refused(make: Make) -> None:
    windows = [window(i) for i in range(2)]
    tool = make(windows=windows)
    refs = [ref for _, ref in tool.write_bases(windows)]
    with pytest.raises(EngineError, match="another window"):
        list(tool.compare(windows, refs[::-1]))
    foreign = tool.blobs.put(b"x", format="mlx-hidden/1")
    with pytest.raises(EngineError, match="stored as mlx-hidden/1"):
        list(tool.compare(windows, [foreign, foreign]))


def test_only_windows_scored_in_their_second_half_fit(make: Make) -> None:
    assert fits(window(1))
    assert not fits(Window(tokens=window(1).tokens, start=8))
    with pytest.raises(EngineError, match="second half"):
        list(make().write_bases([window(1), Window(tokens=tuple(range(97, 107)), start=6)]))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama-perplexity_b11434_text-too-short_rc0.out", "you need at least 1024 tokens"),
        ("llama-perplexity_b11434_base-other-ctx_rc0.out", "failed to decode"),
    ],
)
def test_recorded_failures_are_errors_that_quote_the_reason(name: str, expected: str) -> None:
    log = (RECORDED / name).read_text()
    for read in (final_perplexity, printed_mean_kld):
        with pytest.raises(EngineError, match=expected) as caught:
            read(log)
        assert caught.value.hint


@pytest.mark.parametrize(("name", "expected"), [("q8_0", 0.004160), ("q4_0", 0.054777)])
def test_recorded_summary_is_read(name: str, expected: float) -> None:
    assert printed_mean_kld((RECORDED / f"llama-perplexity_b11434_smollm2-q4_1_{name}.stdout").read_text()) == expected


def test_logits_that_are_not_finite_agree_with_what_the_tool_says_of_them() -> None:
    said = "0.01.2 E Unexpected negative standard deviation of log(prob)"
    check_agreement(said, float("nan"), clamped=False)
    with pytest.raises(EngineError, match="perplexity of nan"):
        check_agreement(said, 2.0, clamped=False)
    check_agreement("Final estimate: PPL = 20.0 +/- 1", np.log(20.0), clamped=False)
    check_agreement("Final estimate: PPL = 25.0 +/- 1", np.log(20.0), clamped=True)
    with pytest.raises(EngineError):
        check_agreement("Final estimate: PPL = 25.0 +/- 1", np.log(20.0), clamped=False)


PATCHED = """
if '--help' in sys.argv:
    sys.exit(print('--kl-divergence-positions FNAME'))
args = dict(zip(sys.argv[1:], sys.argv[2:]))
rows = json.load(open(args['-rows']))
with open(args['--kl-divergence-positions'], 'w') as lines:
    lines.write(''.join(json.dumps(row) + chr(10) for row in rows))
base = open(args['--kl-divergence-base'], 'rb').read()
print('base of', len(base), base[:8])
"""


def patched(make: Make, tmp_path: Path, rows: Sequence[object]) -> Perplexity:
    """A Perplexity over a stand-in for the patched tool, which writes the rows."""
    tool = make(windows=[window(1)])
    tool.binary.write_text(f"#!{sys.executable}\nimport json, sys\n{PATCHED}")
    (tmp_path / "rows").write_text(json.dumps(rows))
    return tool


def position(chunk: int, at: int, token: int) -> dict[str, object]:
    numbers = {"kl": 0.25, "nll_reference": 1.0, "nll": 1.5, "margin": 0.5}
    return {"chunk": chunk, "position": at, "token": token, **numbers, "same_top": True, "reference_finite": True}


def test_a_patched_tool_s_positions_are_read(make: Make, tmp_path: Path) -> None:
    windows = [window(i) for i in range(2)]
    refs = [ref for _, ref in make(windows=windows).write_bases(windows)]
    rows = [position(c, at, w.tokens[at]) for c, w in enumerate(windows) for at in range(w.start, SIZE)]
    rows[3] |= {"kl": None, "nll": None}
    found = dict(patched(make, tmp_path, rows).compare(windows, refs))
    assert list(found) == windows
    first = found[windows[0]]
    assert np.isnan(first.kl).tolist() == [False, False, False, True, False, False, False]
    assert first.token_nll_delta[0] == pytest.approx(0.5)
    assert first.token_p_delta[0] == pytest.approx(np.exp(-1.5) - np.exp(-1.0))
    assert first.same_top.all()
    assert (found[windows[1]].kl == 0.25).all()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda rows: rows[:-1], "gave no position 15 of window 2"),
        (lambda rows: [*rows, rows[-1]], "more positions than were asked for"),
        (lambda rows: rows[::-1], "gave position .1, 15, .*, expected .0, 9"),
        (lambda rows: [{"kl": 1}], "gave no position 9 of window 1"),
    ],
)
def test_a_patched_tool_that_writes_something_else_is_an_error(
    make: Make, tmp_path: Path, change: Callable[[list[object]], list[object]], expected: str
) -> None:
    windows = [window(i) for i in range(2)]
    refs = [ref for _, ref in make(windows=windows).write_bases(windows)]
    rows: list[object] = [position(c, at, w.tokens[at]) for c, w in enumerate(windows) for at in range(w.start, SIZE)]
    with pytest.raises(EngineError, match=expected):
        list(patched(make, tmp_path, change(rows)).compare(windows, refs))
