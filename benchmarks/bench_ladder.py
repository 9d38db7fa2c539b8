"""All four axes on six configurations from mild to harsh: is the composite in that order, up to ties that it declares?

On two small models, with few prompts, through `refract score` and its cache: asked again it answers from there.
`refract fetch --model smollm2` and `--model gemma3` first. A quarter of an hour a model on two idle cores.
"""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory

from refract.cli import main as refract
from refract.errors import ReportError
from refract.report.jsonfile import from_json
from refract.report.ranking import common_axes, difference, score_on
from refract.results import CandidateResult, Report

MODELS = ("smollm2", "gemma3")
LADDER = ("q8_0/q8_0", "q8_0/turbo4", "q8_0/turbo3", "turbo4/turbo4", "turbo3/turbo3", "turbo2/turbo2")
SIZES = (
    *("--axes", "trajectory,kld,rniah,plad", "--max-prompts", "12", "--n-predict", "32", "--chunks", "8"),
    *("--rniah-lengths", "512", "--rniah-positions", "0.5", "--rniah-trials", "16", "--no-explain", "--no-control"),
)


def main() -> None:
    """Prints a table a model, and every pair that stands the wrong way round.

    Raises: ReportError when `refract score` wrote no report.
    """
    for model in MODELS:
        print(f"-- {model}", flush=True)
        show(_measured(model))


def _measured(model: str) -> Report:
    candidates = [word for k, v in (name.split("/") for name in LADDER) for word in ("--candidate", f"ctk={k},ctv={v}")]
    with TemporaryDirectory(prefix="refract-bench-") as folder:
        file = Path(folder) / "report.json"
        code = refract(["score", "--model", model, *candidates, *SIZES, "--json-out", str(file), "--progress", "none"])
        if not file.is_file():
            raise ReportError(f"refract score wrote no report and exited with {code}", hint="read what it said above")
        return from_json(file.read_text(encoding="utf-8"))


def show(report: Report) -> None:
    """Prints every candidate's axes and composite, and how each pair of the ladder stands."""
    basis = common_axes(report.candidates)
    print(f"composite of {', '.join(basis)}")
    for candidate in report.candidates:
        score = score_on(candidate, basis)
        cells = (f"{a.axis} {a.status if a.score is None else f'{a.score.value:.1f}'}" for a in candidate.axes)
        print(f"{candidate.kv!s:<26}{'-' if score is None else f'{score.value:.1f}':>6}  {', '.join(cells)}")
    words = [order(mild, harsh, basis) for mild, harsh in combinations(report.candidates, 2)]
    print(f"pairs: {', '.join(f'{words.count(word)} {word}' for word in ('in order', 'tied', 'WRONG'))}\n")


def order(mild: CandidateResult, harsh: CandidateResult, basis: tuple[str, ...]) -> str:
    """Whether the milder configuration is shown to score higher, lower ("WRONG"), or neither."""
    found = difference(mild, harsh, basis)
    return "in order" if found.low > 0.0 else "WRONG" if found.high < 0.0 else "tied"


if __name__ == "__main__":
    main()
