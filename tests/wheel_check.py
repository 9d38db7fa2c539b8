"""Run by `make test-wheel` with the Python of an environment that has the wheel and nothing else of this checkout."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import refract
from refract.data.corpus import load_corpus
from refract.data.prompts import load_prompts
from refract.data.shipped import shipped

PACKAGE = Path(refract.__file__).parent
COMMANDS = (["--help"], ["--version"], ["formats"], ["score", "--help"])


def main() -> None:
    """Fails with an AssertionError that says what the wheel lacks."""
    assert PACKAGE.is_relative_to(sys.prefix), f"{PACKAGE} is not the installed package"
    for folder, file in (("prompts", "v1.jsonl"), ("prompts", "README.md"), ("llama-cpp-patches", "README.md")):
        found = shipped(folder) / file
        assert found.is_relative_to(PACKAGE), f"{found} is not inside the wheel"
        assert found.is_file(), f"{folder}/{file} is missing"
    assert load_prompts().prompts
    assert len(load_corpus().text) >= 300_000
    for name in ("py.typed", "report/schema.json"):
        assert (PACKAGE / name).is_file(), f"{name} is missing"
    assert any((PACKAGE / "report" / "templates").iterdir()), "the HTML templates are missing"
    assert importlib.util.find_spec("tests") is None, "the wheel installs the tests"
    for words in COMMANDS:
        done = subprocess.run(
            [Path(sys.prefix) / "bin" / "refract", *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"refract {' '.join(words)}: {done.stderr}"
        assert done.stdout, f"refract {' '.join(words)} printed nothing"
    sys.stdout.write(f"the wheel of refract {refract.__version__} is complete\n")


if __name__ == "__main__":
    main()
