"""The library imports nothing from the paper package, and its parts import in one direction."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import babn

SOURCES = Path(babn.__file__).parent

EXCEPTIONS = {"elbo.py imports conversion"}
"""Imports against the order: `elbo.py` reads the KL from the state of a converted model."""

WITHOUT_PAPER = """
import pkgutil, sys
sys.modules["babn_paper"] = None
import babn, babn.cli
from babn.cli._app import commands
names = [m.name for m in pkgutil.walk_packages(babn.__path__, "babn.")]
for name in names:
    if not name.startswith(("babn.kernels", "babn.__main__")):
        __import__(name)
print(len(names))
"""


def imported(path: Path) -> Iterator[str]:
    """The modules that a file imports, and the strings in it that name the other package."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from (word for word in node.value.split() if word.startswith("babn_paper"))


def test_no_file_of_the_library_names_the_paper_package() -> None:
    files = sorted(SOURCES.rglob("*.py"))
    assert len(files) > 100
    found = {str(p): m for p in files for m in imported(p) if m.split(".")[0] == "babn_paper"}
    assert not found


def parts_in_order() -> list[str]:
    """Files and folders of the library in the order of the table in CONTRIBUTING.md."""
    text = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.partition("| `src/babn/` | content |\n|---|---|\n")[2].partition("\n\n")[0]
    cells = (line.split("|")[1] for line in table.splitlines())
    names = (name for cell in cells for name in re.findall(r"`([^`]+)`", cell))
    return [name.removesuffix("/").removesuffix(".py") for name in names]


def imported_parts(path: Path, parts: Sequence[str]) -> Iterator[str]:
    """The parts of the library that a file imports as soon as it is imported."""
    nodes: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    for node in nodes:
        if isinstance(node, ast.Import):
            # `import babn` alone gives the public names.
            modules = [f"{name.name}.public" for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} has a relative import"
            modules = [f"{node.module}.{name.name}" for name in node.names]
        else:
            skipped = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or (
                isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            )
            nodes += [] if skipped else ast.iter_child_nodes(node)
            continue
        for package, part, *_ in (module.split(".") for module in modules if "." in module):
            if package == "babn" and part in parts:
                yield part


def test_each_part_of_the_library_imports_only_parts_before_it() -> None:
    order = parts_in_order()
    files = {path: path.relative_to(SOURCES).parts[0] for path in SOURCES.rglob("*.py")}
    own = {path: part.removesuffix(".py") for path, part in files.items()}
    assert sorted(order) == sorted({*own.values()} - {"__init__", "__main__"})
    found = [
        f"{path.relative_to(SOURCES)} imports {imported}"
        for path, part in own.items()
        if part in order
        for imported in imported_parts(path, order)
        if order.index(imported) > order.index(part)
    ]
    assert {*found} <= EXCEPTIONS


@pytest.mark.thorough
def test_every_module_of_the_library_imports_without_the_paper_package() -> None:
    run = subprocess.run([sys.executable, "-c", WITHOUT_PAPER], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) > 100
