"""The notebooks in examples run from beginning to end, with tiny models."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"

TINY = {
    "classifier_without_training": {"model": "small", "epochs": 1, "samples": 3},
    "fine_tune_and_abstain": {"model": "small", "epochs": 1, "samples": 3},
    "language_model": {"steps": 3, "noisy_steps": 2, "samples": 2},
}

pytestmark = pytest.mark.thorough


def cells(name: str) -> list[dict[str, Any]]:
    content = json.loads((EXAMPLES / f"{name}.ipynb").read_text(encoding="utf-8"))
    return [cell for cell in content["cells"] if cell["cell_type"] == "code"]


def execute(source: str, names: dict[str, Any]) -> Any:
    """Runs a cell and returns the value of its last line, as a notebook does."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return (
        None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    )


def test_every_notebook_is_run() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.ipynb")} == set(TINY)


@pytest.mark.parametrize("name", TINY)
def test_a_notebook_runs_and_ends_with_the_viewer(name: str) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    for cell in cells(name):
        assert cell["outputs"] == [] and cell["execution_count"] is None
        shown.append(execute("".join(cell["source"]), names))
        if "parameters" in cell["metadata"].get("tags", []):
            names.update(TINY[name])
    assert any(hasattr(value, "_repr_html_") or hasattr(value, "savefig") for value in shown)
    if name != "fine_tune_and_abstain":
        assert shown[-1]._repr_html_().startswith("<iframe srcdoc=")
