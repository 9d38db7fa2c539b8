"""Words of refract-llm 0.3: read as ours where they mean the same, answered with a hint where nothing does."""

from __future__ import annotations

import pytest

from refract.cli.legacy import translated
from refract.errors import UsageError
from tests.cli.conftest import Shell


def read(words: str) -> list[str]:
    return translated(words.split(), lambda _: None)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("score --axis-rniah", "score --axes=trajectory,kld,rniah"),
        ("score --axis-plad --axis-rniah", "score --axes=trajectory,kld,plad,rniah"),
        ("score --skip-gtm", "score --axes=kld"),
        ("score --skip-kld --axis-plad", "score --axes=trajectory,plad"),
        ("score -c 256", "score --ctx=256"),
        ("score -ngl 99", "score --llama-extra-flags=-ngl 99"),
        ("score --n-gpu-layers=20", "score --llama-extra-flags=-ngl 20"),
        ("score --no-auto-fetch --no-progress", "score --progress=none"),
        ("score --axis-a trajectory --seed 3", "score --seed 3"),
        ("score --rniah-ctx-max 8192", "score --rniah-up-to=8192"),
        ("score --rniah-up-to 4096 --rniah-ctx-max 8192", "score --rniah-up-to=4096"),
        ("score --rniah-up-to=16384 --rniah-ctx-max=8192", "score --rniah-up-to=8192"),
        ("score --rniah-lengths 1024,4096,9000 --rniah-ctx-max 8192", "score --rniah-lengths=1024,4096"),
        ("score --backend auto --model m.GGUF", "score --model m.GGUF --backend=llamacpp"),
        ("score --backend auto --model folder", "score --model folder --backend=mlx"),
        ("repeatability --runs 4 -c 128", "repeatability --runs 4 --ctx=128"),
        ("--debug score -c 128", "--debug score --ctx=128"),
    ],
)
def test_what_means_the_same_is_read_as_ours(theirs: str, ours: str) -> None:
    head, _, flags = ours.partition("--llama-extra-flags")
    expected = head.split() + ([f"--llama-extra-flags{flags}"] if flags else [])
    assert read(theirs) == expected


def test_flags_of_the_user_stay_before_theirs() -> None:
    words = translated(["score", "--llama-extra-flags", "--mlock -t 4", "-ngl", "9"], lambda _: None)
    assert words == ["score", "--llama-extra-flags=--mlock -t 4 -ngl 9"]


@pytest.mark.parametrize("words", ["compare a.json -c 3", "--help", "", "formats --json", "score --candidate x --full"])
def test_everything_else_is_left_alone(words: str) -> None:
    notes: list[str] = []
    assert translated(words.split(), notes.append) == words.split()
    assert notes == []


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        ("score --axis-a gtm", "--axis-a is an option of refract-llm", "gtm is gone"),
        ("repeatability --out-dir d", "--out-dir is an option of refract-llm", "--json-out"),
        ("score --axis-plad --axes kld", "--axes names what is measured, and so does --axis-plad", "keep --axes"),
        ("score --skip-gtm --skip-kld", "leave nothing to measure", "leave one of them out"),
        ("score --rniah-ctx-max many", "expected a whole number", "8192"),
        ("score --rniah-ctx-max 10 --rniah-lengths 99,100", "leaves none of --rniah-lengths", "raise it"),
        ("score -c", "-c: expected one argument", "--help"),
    ],
)
def test_what_has_no_counterpart_gets_a_hint(words: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as raised:
        read(words)
    assert message in raised.value.message
    assert hint in str(raised.value.hint)


def test_each_replacement_is_said_and_the_run_is_ours(refract: Shell) -> None:
    ran = refract.score("--skip-gtm", "--no-progress", "--no-auto-fetch", "--full", "--json-out", "-")
    assert ran.code == 0
    candidates = ran.report["candidates"]
    assert isinstance(candidates, list)
    assert [axis["axis"] for axis in candidates[0]["axes"]] == ["kld"]
    assert "refract: refract-llm's --skip-gtm: read as --axes kld" in ran.err
    assert "--full takes all prompts here" in ran.err


def test_needles_may_lie_in_a_text_of_their_own(refract: Shell) -> None:
    (refract.folder / "hay.txt").write_text("".join(f"Line {n} of the hay is dry and long.\n" for n in range(400)))
    options = ("--axes", "rniah", "--rniah-lengths", "400", "--rniah-trials", "1", "--progress", "none")
    own, corpus = (
        refract.score(*options, *haystack, "--json-out", "-").report["methodology"]
        for haystack in (("--rniah-haystack", "hay.txt"), ())
    )
    assert isinstance(own, dict)
    assert isinstance(corpus, dict)
    assert own["parameters"]["rniah"]["parameters"]["haystack"].startswith("hay.txt@")
    assert "haystack" not in corpus["parameters"]["rniah"]["parameters"]
    assert own["id"] != corpus["id"]
    assert refract.score("--rniah-haystack", "missing.txt").code == 2
