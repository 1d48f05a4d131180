"""Tables of many runs."""

import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_experiments import TINY

from babn_paper.experiments.experiment import Experiment
from babn_paper.experiments.grids import table_grid
from babn_paper.experiments.records import Record, collect, load_records
from babn_paper.experiments.result_pages import main_table, page, write_results
from babn_paper.experiments.result_tables import (
    best_places,
    efficiency_table,
    mean_and_deviation,
    results_table,
)


def record(method: str, seed: int, score: float | None, **modes: Any) -> Record:
    paper = {"accuracy": "86.5"} if method == "softmax" else {}
    experiment = Experiment.from_dict(TINY | {"method": method, "seed": seed, "paper": paper})
    results: dict[str, Any] = {}
    if score is not None:
        mean = {"accuracy": score, "NLL": 1 - score, "ECE-10": 0.1, "ECE-10 + TS": 0.05}
        measures = {"dev": {"mean": mean, **modes}}
        results = {"measures": measures, "parameters": 11_700_000, "seconds_per_step": 0.25}
    environment = {
        "started": "2026-01-02T03:04:05",
        "machine": {"gpu": "a GPU"},
        "versions": {"torch": "2"},
    }
    return Record(f"mrpc-{method}", experiment.to_dict(), results, environment)


RECORDS = [
    record("softmax", 0, 0.80),
    record("softmax", 1, 0.84),
    record("bam", 0, None),
    record("bam", 1, None),
    record("belief", 0, 0.85, sampled={"accuracy": 0.88}),
    record("belief", 1, 0.85, sampled={"accuracy": 0.89}),
]


def test_without_numbers_of_the_paper_there_is_no_column_for_them() -> None:
    table, own = results_table(RECORDS), results_table(RECORDS[2:])
    assert list(own.columns) == [name for name in table.columns if name != "paper"]
    marked = {(own.rows[row][1], own.columns[column]) for row, column in own.best}
    assert ("BABN", "score, sampled") in marked


def test_cells_are_mean_and_deviation_over_seeds_beside_the_papers() -> None:
    table = results_table(RECORDS)
    rows = {row[1]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    deviation = 100 * statistics.stdev([0.80, 0.84])
    assert rows["softmax"]["score, mean"] == f"82.0 ± {deviation:.1f}"
    assert rows["softmax"]["paper"] == "86.5"
    assert rows["softmax"]["score, sampled"] == "–"
    assert rows["softmax"]["seeds"] == "2"
    assert rows["BAM"]["score, mean"] == "not run"
    assert rows["BAM"]["seeds"] == "0"
    assert rows["BABN"]["NLL, mean"] == "0.150 ± 0.000"
    assert rows["BABN"]["score, sampled"].startswith("88.5 ± 0.7")


def test_a_cell_says_for_how_many_seeds_there_is_a_number() -> None:
    assert mean_and_deviation([0.5, math.nan, 0.7], percent=True) == "60.0 ± 14.1 (2 of 3)"
    assert mean_and_deviation([math.nan, 0.7], percent=False) == "0.700 (1 of 2)"
    assert mean_and_deviation([math.nan], percent=False) == "undefined"


def test_a_cell_without_a_number_for_every_seed_is_not_the_best() -> None:
    runs = [record("softmax", 0, 0.8), record("softmax", 1, math.nan)]
    runs += [record("bam", seed, 0.7 + seed / 100) for seed in (0, 1)]
    runs += [record("belief", seed, 0.5 + seed / 100) for seed in (0, 1)]
    table = results_table(runs)
    marked = {table.rows[row][1] for row, column in table.best if "score" in table.columns[column]}
    assert marked == {"BAM"}


def test_ties_noise_and_single_seeds_are_not_marked() -> None:
    assert best_places({"a": [0.8, 0.9], "b": [0.8, 0.9]}) == set()
    assert best_places({"a": [0.8, 0.9], "b": [0.81, 0.93]}) == set()
    assert best_places({"a": [0.8], "b": [0.9]}) == set()
    assert best_places({"a": [0.80, 0.81], "b": [0.90, 0.91]}) == {"b"}
    assert best_places({"a": [0.80, 0.81], "b": [0.90, 0.91]}, lower_is_better=True) == {"a"}
    assert best_places({"a": [0.80, 0.81]}) == set()


def test_the_best_of_a_task_is_marked_in_either_mode() -> None:
    table = results_table(RECORDS)
    marked = {(table.rows[row][1], table.columns[column]) for row, column in table.best}
    assert ("BABN", "score, sampled") in marked
    assert ("BABN", "NLL, mean") not in marked  # 0.15 against 0.16 and 0.20
    assert not any(name == "BAM" for name, _ in marked)
    assert ("softmax", "score, mean") not in marked


def test_dropout_and_ensembles_have_rows_of_their_own() -> None:
    dropped = record("softmax", 0, 0.8, dropout={"accuracy": 0.81})
    results = {"members": 5, "measures": {"dev": {"sampled": {"accuracy": 0.9}}}}
    joined = Record("mrpc-ensemble", {**dropped.experiment, "method": "ensemble"}, results, {})
    table = results_table([dropped, joined])
    rows = {row[1]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert rows["softmax"]["score, sampled"] == "–"
    assert rows["softmax, MC dropout"]["score, sampled"] == "81.0"
    assert rows["softmax, MC dropout"]["paper"] == rows["softmax, MC dropout"]["score, mean"] == "–"
    assert rows["softmax, ensemble"]["score, sampled"] == "90.0"
    assert rows["softmax, ensemble"]["seeds"] == "5"
    assert len(efficiency_table([dropped, joined]).rows) == 1
    both = results_table([record("belief", 0, 0.8, dropout={"accuracy": 0.83})])
    assert [row[1] for row in both.rows] == ["BABN", "BABN, sampled + dropout"]


def test_efficiency_is_parameters_and_seconds() -> None:
    table = efficiency_table(RECORDS)
    assert list(table.columns) == ["attention", "parameters", "s/step"]
    assert table.rows[0] == ["softmax", "11.7M", "0.250"]
    assert table.rows[1][1] == "not run"


def test_a_grid_about_costs_has_no_table_of_scores() -> None:
    costs = {"parameters": "11.7M", "s/step": "0.26"}
    records = [replace(r, experiment={**r.experiment, "paper": costs}) for r in RECORDS[:2]]
    text = page(records, "Efficiency", "babn reproduce efficiency")
    assert text.count("| attention") == 1 and "score" not in text
    assert "| softmax   | 11.7M             | 11.7M      | 0.26          | 0.250  |" in text


def test_the_page_says_what_was_run_where_and_how(tmp_path: Path) -> None:
    text = page(RECORDS, "Table 1", "babn reproduce table1")
    assert "babn reproduce table1" in text
    assert "Seeds: 0, 1. 4 of 6 runs, 2026-01-02." in text
    assert "Trained on: " in text
    assert "Machine: a GPU. Versions: torch 2." in text
    written = write_results(RECORDS, tmp_path, "Table 1", "babn reproduce table1")
    assert written.read_text() == text
    assert load_records(tmp_path / "results.json")[0] == RECORDS
    assert (tmp_path / "results.tex").read_text().count("not run") == 8
    assert "MRPC,BABN" in (tmp_path / "results.csv").read_text()


def test_numbers_that_are_not_defined_survive_the_file(tmp_path: Path) -> None:
    path = write_results([record("softmax", 0, math.nan)], tmp_path, "t", "c")
    text = (tmp_path / "results.json").read_text()
    assert "NaN" not in text and "null" in text
    (found,), _ = load_records(tmp_path / "results.json")
    assert math.isnan(found.measures["mean"]["accuracy"])
    assert "undefined" in path.read_text()


@pytest.mark.parametrize(
    "table", ["table1", "table2", "table4", "table5", "ablation", "efficiency"]
)
def test_before_any_run_a_table_has_all_numbers_of_the_paper(table: str, tmp_path: Path) -> None:
    jobs = table_grid(table, [0]).jobs({}, tmp_path)
    found = main_table(collect(jobs))
    rows = [" ".join(row) for row in found.rows]
    assert len(set(rows)) == len(rows) == len(jobs)
    for job, row in zip(jobs, rows, strict=True):
        assert all(number in row for number in job.experiment.paper.values()), row
        if table == "table2":
            assert Path(job.experiment.model).name in row
    methods = {"BABN (paper)"} if table == "ablation" else {"BABN (paper)", "BABN (default)"}
    assert all(any(method in row for row in rows) for method in methods)
