"""The library stands alone; the reproductions of the papers stand on it."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import babn

SOURCES = Path(babn.__file__).parent

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


@pytest.mark.thorough
def test_every_module_of_the_library_imports_without_the_paper_package() -> None:
    run = subprocess.run([sys.executable, "-c", WITHOUT_PAPER], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) > 100
