"""Several models and recipes at once, and the table that comes of them."""

import shutil
from pathlib import Path

import pytest
from attack_cases import repeater
from test_attack_command import run

from babn.errors import ConfigError
from babn.progress import Progress
from babn_paper.attacks.attack_run import attack_many, parse_recipes
from interruptions import told_after_ctrl_c

pytestmark = pytest.mark.thorough


class Counted(Progress):
    def __init__(self) -> None:
        self.total, self.done = 0, 0

    def begin(self, task: str, total: int, done: int = 0) -> None:
        self.total = total

    def step(self, count: int, note: str = "") -> None:
        self.done += count


def copied_run(run: Path, place: Path) -> Path:
    """A run without the attacks of other tests."""
    return Path(shutil.copytree(run, place, ignore=shutil.ignore_patterns("attacks")))


def test_recipes_are_named_one_by_one_or_all_together() -> None:
    assert parse_recipes("all") == ["textfooler", "textbugger", "bae"]
    assert parse_recipes("bae, textfooler") == ["textfooler", "bae"]
    with pytest.raises(ConfigError, match="recipe pwws is not known"):
        parse_recipes("bae,pwws")


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_what_fails_does_not_stop_the_others(
    softmax_run: Path, belief_run: Path, tmp_path: Path, jobs: int
) -> None:
    progress = Counted()
    copied = copied_run(belief_run, tmp_path / "belief")
    runs = [tmp_path / "nothing", copied_run(softmax_run, tmp_path / "softmax"), copied]
    settings = {"examples": 2, "make_attacker": repeater}
    failures = attack_many(runs, ["textfooler", "bae"], jobs, progress, **settings)
    assert sorted(failures) == [
        failure for failure in sorted(failures) if failure.startswith(str(tmp_path / "nothing"))
    ]
    assert len(failures) == 2
    assert progress.done == progress.total == 6
    for threat in ("mean", "sample", "average"):
        assert (copied / "attacks" / f"bae-{threat}" / "attacks.html").exists()


def test_an_interruption_ends_the_workers_too_and_quietly() -> None:
    program = """
import time
from babn_paper.attacks.attack_run import _each

if __name__ == "__main__":
    print("begun", flush=True)
    for _ in _each(time.sleep, [0.0, 600.0, 600.0], 3):
        print("working", flush=True)
"""
    # When one has worked, the others may still be importing what they need.
    printed, errors = told_after_ctrl_c(program, lines=2)
    assert printed == ["begun", "working"]
    assert errors.count("Traceback") == 1  # its own


def test_several_recipes_end_in_a_table(
    softmax_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("babn_paper.attacks.attack_run._textattack", repeater)
    copied = copied_run(softmax_run, tmp_path / "run")
    code, output = run(
        "attack", str(copied), "--recipe", "all", "--examples", "3", "--out", str(tmp_path)
    )
    assert code == 0
    page = (tmp_path / "RESULTS.md").read_text()
    for text in (output, page):
        assert "TextBugger" in text
        assert "SST-2" in text
        assert "7.0" in text  # the paper's softmax under TextFooler
    assert (tmp_path / "results.tex").exists()


@pytest.mark.slow
def test_table_3_trains_attacks_and_collects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("babn_paper.attacks.attack_run._textattack", repeater)
    monkeypatch.setattr("babn_paper.cli._tables.check_installed", lambda: None)
    arguments = ("reproduce", "table3", "--quick", "--seeds", "1", "--only", "sst2",
                 "--set", "steps=2", "--set", "samples=2", "--out", str(tmp_path),
                 "--examples", "2", "--jobs", "1")  # fmt: skip
    code, output = run(*arguments)
    assert code == 0
    page = tmp_path / "quick" / "table3" / "RESULTS.md"
    assert "paper" in page.read_text()
    page.unlink()
    code, shown = run(*arguments, "--show")
    assert code == 0
    assert page.exists()
    assert [line for line in shown.splitlines() if "TextFooler" in line] == [
        line for line in output.splitlines() if "TextFooler" in line
    ]


def test_table_3_says_what_is_missing_before_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, output = run("reproduce", "table3", "--quick", "--out", str(tmp_path))
    assert code == 2
    assert "pip install --no-deps textattack" in output
    assert not list(tmp_path.iterdir())
