"""`babn reproduce all`."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from babn.cli._app import app
from babn.errors import DataError
from babn_paper.cli import _tables
from babn_paper.cli._tables import Request

pytestmark = pytest.mark.thorough

RUNNER = CliRunner(env={"COLUMNS": "120", "NO_COLOR": "1"})
TEXTATTACK = importlib.util.find_spec("textattack") is not None


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Request]]:
    """The tables that the command requests, without making them."""
    monkeypatch.chdir(tmp_path)
    requests: list[tuple[str, Request]] = []

    def make_table(table: str, request: Request, only: str | None = None) -> None:
        requests.append((table, request))
        if table == "table4":
            raise DataError("no such corpus")
        if table == "table5":
            raise RuntimeError("a mistake")

    monkeypatch.setattr(_tables, "make_table", make_table)
    return requests


def invoke(*words: str) -> tuple[int, str]:
    result = RUNNER.invoke(app(), ["reproduce", "all", *words])
    return result.exit_code, result.output


def test_every_table_is_made_whatever_fails_before_it(made: list[Any]) -> None:
    code, output = invoke("--quick", "--resources", "nowhere")
    wanted = [*_tables.TITLES]
    assert [table for table, _ in made] == [t for t in wanted if t != "table3" or TEXTATTACK]
    assert all(request.seeds == 1 and request.quick for _, request in made)
    assert code == 2 and "2 of 8 tables are incomplete" in output
    report = Path("runs/quick/all/RESULTS.md").read_text()
    assert "failed: no such corpus" in report and "failed: a mistake" in report
    assert all(title in report for title in _tables.TITLES.values())


def test_tables_can_be_chosen(made: list[Any]) -> None:
    code, output = invoke("--only", "efficiency, table2", "--seeds", "3")
    assert code == 0, output
    assert [table for table, _ in made] == ["table2", "efficiency"]
    assert made[0][1].seeds == 3 and not made[0][1].quick
    assert "babn reproduce table2 --seeds 3" in Path("runs/all/RESULTS.md").read_text()


@pytest.mark.skipif(TEXTATTACK, reason="TextAttack is installed")
def test_attacks_that_cannot_be_run_are_told(made: list[Any]) -> None:
    code, output = invoke("--quick", "--only", "table3")
    assert code == 0 and not made
    assert "not run: TextAttack is not installed" in output
    report = Path("runs/quick/all/RESULTS.md").read_text()
    assert "babn reproduce table3 --quick --seeds 1 --resources DIR" in report


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--only", "table9"], "--only table9 is not a table"),
        (["--jobs", "0"], "jobs=0"),
        (["--set", "stepps=1"], "no field stepps"),
    ],
)
def test_mistakes_are_told_before_anything_runs(
    words: list[str], part: str, made: list[Any]
) -> None:
    code, output = invoke(*words)
    assert code == 2 and part in output and not made
    assert not Path("runs").exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_tables_and_a_figure_come_out_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BABN_CACHE", str(tmp_path / "cache"))
    words = ["--quick", "--only", "table4,table5,efficiency,figure3", "--set", "steps=1"]
    code, output = invoke(*words)
    assert code == 0, output
    report = Path("runs/quick/all/RESULTS.md").read_text()
    for state in ("6 of 6 runs", "4 of 4 runs", "2 pictures"):
        assert state in report
    assert "![](../figure3/" in report
    code, again = invoke(*words)  # nothing is run twice
    assert code == 0, again
