"""The tables of "The paper as written", made from small made-up results."""

import json
from pathlib import Path
from typing import Any

import paper_pages
import paper_results
import pytest
from result_files import save_runs

from babn.attention.belief import SMALLEST_K, BeliefConfig
from babn_paper.experiments.grids import read_grid

SWEEPS = Path(__file__).parents[3] / "paper/sweeps"
MEASURES: dict[str, dict[str, dict[str, float]]] = {
    "easy-vqa": {part: {"accuracy": 0.5, "NLL": 1.0, "ECE-10": 0.1} for part in ("test", "noisy")},
    "tatoeba": {"test": {"BLEU": 0.25, "chrF": 0.5, "sentences": 2000.0}},
    **{
        task: {part: {"accuracy": 0.5, "NLL": 1.0, "ECE-10": 0.1} for part in ("test", "out")}
        for task in ("paraphrase", "nli")
    },
}


def made_up(name: str) -> list[dict[str, Any]]:
    """A run for each job of a grid, all with the same numbers."""
    return [
        {
            "label": job.folder.parent.name,
            "experiment": job.experiment.to_dict() | {"data": "DIR"},
            "results": {
                "measures": {p: {"mean": m} for p, m in MEASURES[job.experiment.task].items()},
                "scores": ["BLEU" if job.experiment.task == "tatoeba" else "accuracy"],
                "parameters": 1_000_000,
                "notes": {},
            },
            "environment": {"started": "2026-01-01", "machine": {}, "versions": {}, "data": {}},
        }
        for job in read_grid(SWEEPS / f"{name}.toml").jobs({})
    ]


@pytest.mark.parametrize("name", paper_pages.WRITTEN)
def test_tasks_appear_with_every_method_once_they_were_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paper_pages, "RESULTS", tmp_path)
    assert paper_pages.written() == "No run is committed."
    save_runs(made_up(name), f"babn sweep {name}.toml", tmp_path / f"{name}.json")
    text = paper_pages.written()
    assert text.count("### ") == 1
    rows = [[cell.strip() for cell in line.split("|")] for line in text.splitlines()]
    seeds = {row[1]: row[-2] for row in rows if len(row) > 4}
    weights = {f"BABN (paper), kl_weight={w}": "1" for w in ("0.01", "0.0001", "1e-06")}
    every = {"softmax": "3", "BAM": "3", "BABN (paper)": "3", "BABN (default)": "3"}
    assert every | weights | {"BABN (paper), kl_weight=1e-08": "3"} == {
        method: count for method, count in seeds.items() if count.isdigit()
    }


def test_the_page_describes_the_presets() -> None:
    page = (SWEEPS.parents[1] / "docs/paper_as_written.md").read_text()
    lines = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    rows = {line[0]: line[1:] for line in lines if len(line) == 4}
    presets = BeliefConfig.paper(), BeliefConfig(), BeliefConfig.pairs()
    assert rows["rho"] == [f"{each.rho:g}" for each in presets]
    assert rows["KL weight after annealing"] == [f"{each.kl_weight:g}" for each in presets]
    over = {"pairs": "query and key", "keys": "key"}
    assert rows["one variable for each"] == [over[each.noise_over] for each in presets]
    reduced = [cell.partition(" ")[0] for cell in rows["KL of an example"]]
    assert reduced == [each.kl_reduction for each in presets]
    noises = [each.noise for each in presets]
    assert noises == ["truncated-paper", "exact", "truncated"]
    assert presets[0].scores == "raw"
    assert presets[2].scores == "normalized"
    assert presets[0].smallest_k == SMALLEST_K


def run_with(tokens: int, accuracy: float, collapsed: bool) -> dict[str, Any]:
    """A run as `paper_as_written.py` writes it."""
    mean = {"accuracy": accuracy, "nll": 0.5, "ece": 0.1, "collapsed": collapsed}
    found = {"mean": mean, "curve": [[0, 0.7, 1e12, 0.0], [9, 0.5, 3.0, 1e-8]], "seconds": 1.0}
    return {
        "task": "mrpc",
        "seed": 0,
        "model": "minilm",
        "machine": "a GPU",
        "versions": {},
        "length": 0.75 * tokens,
        "settings": {"lr": 1e-4, "tokens": tokens},
        "methods": {"softmax": found, "paper, KL weight 1e-08": found},
    }


def test_runs_of_several_lengths_are_shown_by_length(tmp_path: Path) -> None:
    runs = [run_with(32, 0.8, False), run_with(128, 0.68, True)]
    (tmp_path / "runs.json").write_text(json.dumps(runs))
    results = paper_results.collect([tmp_path / "runs.json"])
    text = paper_results.page([results])
    assert "| mrpc | 32             | 24         | 80.0 / 0.500 / 10.0" in text
    assert "| mrpc | 128            | 96         | 68.0 / 0.500 / 10.0 (1 of 1 collapsed)" in text
    assert "weight 1e-08" in text
    one = paper_results.page([paper_results.collect([tmp_path / "runs.json"]) | {
        "runs": results["runs"][:1]
    }])  # fmt: skip
    assert one.startswith("### minilm, 1 seed\n")
