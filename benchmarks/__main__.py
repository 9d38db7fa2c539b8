"""`python -m benchmarks [NAME …]` runs the named benchmarks, or all of them; `--list` names them.

A benchmark is a module `bench_NAME.py` here, with a function `main() -> None` that prints its table.
"""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path


def names() -> list[str]:
    """Every benchmark there is, in alphabetical order."""
    return sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))


def main(words: Sequence[str]) -> int:
    """Runs the benchmarks; returns 0, or 2 when one is unknown."""
    known = names()
    if "--list" in words:
        print("\n".join(known))
        return 0
    for word in words:
        if word not in known:
            close = difflib.get_close_matches(word, known, n=1)
            print(f"no benchmark {word}, expected {', '.join(known)}", file=sys.stderr)
            print(f"  hint: {f'did you mean {close[0]}?' if close else '--list names them'}", file=sys.stderr)
            return 2
    for name in words or known:
        print(f"== {name}", flush=True)
        importlib.import_module(f"benchmarks.bench_{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
