"""The choice of settings from searches, as `paper/choose_settings.py` makes it."""

import runpy
from pathlib import Path
from typing import Any

import pytest

from babn_paper.experiments.experiment import Experiment
from babn_paper.experiments.records import Record

SCRIPT = runpy.run_path(str(Path(__file__).parents[3] / "paper/choose_settings.py"))
tried, chosen, search_table = SCRIPT["tried"], SCRIPT["chosen"], SCRIPT["search_table"]


def run(score: float, nll: float, label: str = "same", **fields: Any) -> Record:
    """A run of MRPC that scored as given in both modes; sampling doubles the NLL it tells."""
    experiment = {"task": "mrpc", "method": "bam", "seed": 0, "settings": {}, **fields}
    measures = {
        "dev": {
            "mean": {"accuracy": score, "NLL": nll},
            "sampled": {"accuracy": score, "NLL": 2 * nll},
        }
    }
    return Record(label, experiment, {"measures": measures}, {})


def test_searches_that_hold_other_fields_fixed_are_not_mixed() -> None:
    first = run(0.8, 0.5, settings={"k": 4.0}, learning_rate=1e-3)
    second = run(0.6, 0.3, settings={"k": 4.0}, learning_rate=2e-3)
    settings = tried([first, second])["bam"]
    assert [each.score for each in settings] == [0.8, 0.6]
    assert [each.setting["learning_rate"] for each in settings] == [1e-3, 2e-3]


def test_fields_that_a_search_did_not_know_yet_were_at_their_defaults() -> None:
    old, new = run(0.8, 0.5), run(0.6, 0.3, label_smoothing=Experiment.label_smoothing)
    other = run(0.5, 0.3, label_smoothing=0.1)
    settings = tried([old, new, other])["bam"]
    assert [each.runs for each in settings] == [2, 1]


@pytest.mark.parametrize(("score", "expected"), [(0.799, 0.2), (0.797, 0.5)])
def test_among_like_scores_the_smaller_nll_is_chosen(score: float, expected: float) -> None:
    runs = [run(0.8, 0.5, clip=1.0), run(score, 0.2, clip=2.0), run(0.1, 0.01, clip=3.0)]
    assert chosen(tried(runs)["bam"]).nll == pytest.approx(2 * expected)


def test_the_table_has_every_setting_and_marks_the_chosen_one() -> None:
    table = search_table([run(0.8, 0.5, clip=1.0), run(0.5, 0.2, clip=2.0)])
    assert [row[:5] for row in table.rows] == [
        ["BAM", "clip=1.0", "80.00", "1.000", "80.0"],
        ["BAM", "clip=2.0", "50.00", "0.400", "50.0"],
    ]
    assert {row for row, _ in table.best} == {0}
