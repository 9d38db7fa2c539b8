"""The arrows of docs/design.md, read from the source, and what `import refract.cli` may cost."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import resolve_name
from pathlib import Path

import pytest

import refract

PACKAGE = Path(refract.__file__).parent
ROOTS = frozenset(
    {"errors", "format_spec", "formats", "kv", "work", "engine", "results"}
)  # values and protocols, lowest first
SHARED = frozenset({"stats.divergence"})  # pure maths that backends need for an exact KL divergence

# What each part may import of this package, besides itself. `data` values are part of what axes plan from.
ALLOWED: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    "atomic": frozenset(),
    "format_spec": frozenset(),
    "formats": frozenset({"errors", "format_spec", "kv"}),  # kv for annotations only
    "kv": frozenset({"errors", "format_spec", "formats"}),
    "work": frozenset({"errors"}),
    "engine": frozenset({"errors", "kv", "work"}),
    "results": frozenset({"errors", "work"}),
    "stats": frozenset({"errors", "work", "results"}),
    "data": frozenset({"errors", "work"}),
    "axes": frozenset({"errors", "kv", "work", "engine", "results", "stats", "data"}),
    "backends": frozenset({"atomic", "errors", "format_spec", "formats", "kv", "work", "engine"}) | SHARED,
    "run": frozenset({"atomic", "errors", "kv", "work", "engine", "results", "stats", "data", "axes"}),
    "report": frozenset({"atomic", "errors", "kv", "format_spec", "formats", "work", "results", "stats"}),
    "testing": frozenset({"errors", "kv", "formats", "work", "engine", "run"}) | SHARED,
    "mlx": frozenset({"errors", "kv", "backends"}),  # the library interface of that backend, imported by name only
}
LIBRARY = "mlx"  # the one module outside backends that imports an engine
HEAVY = (
    "numpy",
    "rich",
    "jinja2",
    "requests",
    "mlx",
    "mlx_lm",
    "transformers",
    "tokenizers",
    "gguf",
    "pytest",
    "sqlite3",
)


def modules() -> Iterator[tuple[str, Path]]:
    """Every module of the package by its dotted name below `refract`."""
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(PACKAGE).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), file


def imports(name: str, file: Path) -> Iterator[str]:
    """The modules of this package that `file` imports anywhere, inside functions too, by their name below `refract`."""
    package = f"refract.{name}" if file.name == "__init__.py" else f"refract.{name}".rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        found: list[str] = []
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package) if node.level else node.module or ""
            found = [f"{base}.{alias.name}" if _is_module(f"{base}.{alias.name}") else base for alias in node.names]
        yield from (target.removeprefix("refract.") for target in found if target.startswith("refract."))


def _is_module(dotted: str) -> bool:
    path = PACKAGE.parent.joinpath(*dotted.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def part(name: str) -> str:
    return name.partition(".")[0]


def offences(name: str, targets: Iterator[str]) -> list[str]:
    own, allowed = part(name), ALLOWED.get(part(name))
    if allowed is None:  # the command line and the package itself stand above everything
        return []
    return [
        f"{name} imports {target}"
        for target in targets
        if part(target) != own and part(target) not in allowed and target not in allowed
    ]


def test_the_arrows_of_the_design_hold() -> None:
    found = [offence for name, file in modules() for offence in offences(name, imports(name, file))]
    assert found == []


def test_every_part_has_its_arrows_stated() -> None:
    parts = {part(name) for name, _ in modules()} - {""}
    assert parts - set(ALLOWED) <= {"cli", "_shipped", "__main__"}


def test_the_check_sees_what_it_should(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text(
        "from refract.stats.divergence import kl_full\n"
        "from refract.stats import divergence, composite\n"
        "import refract.axes.base\n"
        "def f():\n    from ..report import text\n"
    )
    seen = list(imports("backends.x", file))
    assert seen[:4] == ["stats.divergence", "stats.divergence", "stats.composite", "axes.base"]
    assert offences("backends.x", iter(seen))[:2] == [
        "backends.x imports stats.composite",
        "backends.x imports axes.base",
    ]
    assert part(seen[4]) == "report"


def test_no_engine_is_imported_outside_its_backend() -> None:
    engines = {"mlx", "mlx_lm", "transformers", "tokenizers", "gguf", "vllm", "sglang", "torch"}
    found = []
    for name, file in modules():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            targets = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            targets += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            own = part(name) in {"backends", LIBRARY}
            found += [f"{name} imports {t}" for t in targets if part(t) in engines and not own]
    assert found == []


def test_the_library_interface_is_one_module_that_nothing_here_imports() -> None:
    assert [name for name, _ in modules() if part(name) == LIBRARY] == [LIBRARY]
    assert [name for name, file in modules() for target in imports(name, file) if part(target) == LIBRARY] == []


@pytest.mark.parametrize("module", ["refract", "refract.cli", "refract.backends"])
def test_the_command_line_starts_without_anything_heavy(module: str) -> None:
    code = f"import sys; sys.path[:0] = {sys.path!r}; import {module}; print(' '.join(sys.modules))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = {part(name) for name in ended.stdout.split()}
    assert loaded & set(HEAVY) == set()
