"""What the page on choosing a method says of fabricated results."""

import json
import random
from pathlib import Path
from typing import Any

import choosing_page
import choosing_results as results
import from_scratch_results
import pytest
import write_pages

from babn_paper.method_comparison.method_catalogue import GROUPS, TS

pytestmark = pytest.mark.thorough

COST = {"trainings": 1, "passes": 1, "memory": 1e9, "lines": 3}
TASKS = {"clinc150": [], "sst2": ["restaurants"], "mrpc": ["QQP"], "snli": ["MNLI"]}
METHODS = [m.name for group in ("post-hoc", "trained", "ensembles") for m in GROUPS[group]]
ADAPTERS = [m.name for m in GROUPS["adapters"]]


def run(method: str, seed: int, shifts: list[str], gain: float, noise: float) -> dict[str, Any]:
    """A run that is better than others by `gain`; seeds shift all methods alike."""
    chance = random.Random(f"{method}{seed}{shifts}")
    good = gain + noise * chance.gauss(0, 1) + 0.02 * seed
    part = {
        "accuracy": 0.8 + good / 10,
        "NLL": 0.5 - good,
        "ECE": 0.1,
        "error AUROC": 0.8,
        "outside AUROC": 0.8 + good / 10,
        "outside FPR95": 0.3,
        "set size": 2 - good,
    }
    cost = dict(COST)
    if "ensemble" in method:
        cost |= {"trainings": 5, "passes": 5}
    elif "BABN" in method or "dropout" in method:
        cost |= {"passes": 20}
    measures = {name: {**part, "coverage": 0.85} for name in ["test", *shifts]}
    measures["test"]["coverage"] = 0.951
    return {"method": method, "seed": seed, "tried": 10, "cost": cost, "measures": measures}


def fabricated(
    gains: dict[str, float], noise: float = 0.001, names: list[str] = METHODS, tasks: Any = TASKS
) -> dict[str, Any]:
    """Results in which some methods are better than the others."""
    found = {
        task: {
            "settings": {"lr": 1e-4},
            "runs": [
                run(name, seed, shifts, gains.get(name.removesuffix(TS), 0.0), noise)
                for name in names
                for seed in range(5)
            ],
        }
        for task, shifts in tasks.items()
    }
    return {"model": "minilm", "versions": {"torch": "2"}, "machine": "a GPU", "tasks": found}


def summary(text: str) -> list[str]:
    """The items of the first list."""
    return [x for x in text.partition("\n## ")[0].splitlines() if x.startswith("- ")]


def row(text: str, measure: str) -> list[str]:
    """The row of a measure in the table that compares attention noise with other methods."""
    found = section(text, "How attention noise compares").partition(f"| {measure} | ")[2]
    return found.partition(" |\n")[0].split(" | ")


def section(text: str, title: str) -> str:
    return text.partition(f"## {title}\n")[2].partition("\n## ")[0]


def test_a_rival_that_wins_is_in_the_summary_and_in_the_advice() -> None:
    text = choosing_page.page([fabricated({"ensemble": 0.1, "SNGP": 0.05, "BABN": 0.02})])
    first, *others = summary(text)
    assert first.startswith("- **ensemble + TS** is ahead of attention noise in NLL of test data")
    assert "BABN" not in "".join([first, *others])
    best, _, noise, rank, counts = row(text, "NLL of test data")
    assert (best, noise, counts) == ("ensemble + TS", "BABN + TS", "0 / 4 of 4 tasks")
    assert rank.startswith("3.")
    assert "**SNGP" in section(text, "You can train once")
    assert "**ensemble" in section(text, "You can train five times")
    assert "BABN" not in section(text, "You can train five times")


def test_attention_noise_is_named_where_it_wins() -> None:
    text = choosing_page.page([fabricated({"BABN": 0.1, "SNGP": 0.05})])
    [first] = summary(text)
    assert first.startswith("- **BABN + TS**, with attention noise, is ahead of other methods in")
    best, _, noise, _, counts = row(text, "NLL of test data")
    assert (best, noise, counts) == ("SNGP + TS", "BABN + TS", "4 / 0 of 4 tasks")


def test_a_difference_within_the_noise_is_no_difference() -> None:
    """Seeds vary by 0.02, and noise leads by 0.01."""
    names = ["deterministic", "deterministic + TS", "BABN", "BABN + TS"]
    text = choosing_page.page([fabricated({"BABN": 0.01}, noise=0.02, names=names)])
    assert ", with attention noise, ranks first in NLL of test data" in summary(text)[0]
    assert "but its lead over other methods is within the noise of seeds" in summary(text)[0]
    assert row(text, "NLL of test data")[-1] == "0 / 0 of 4 tasks"
    advice = section(text, "You can train once")
    simplest = "The simplest method on par with it is **deterministic + TS** (1 trained model, 1 pa"
    assert simplest in advice


def test_ties_are_reported() -> None:
    names = ["deterministic", "deterministic + TS", "BABN + TS"]
    text = choosing_page.page([fabricated({}, noise=0.0, names=names)])
    assert summary(text)[0].startswith("- Attention noise and other methods tie in NLL of test")
    assert "You can train five times" not in text


def test_noise_that_seeds_share_does_not_hide_a_difference() -> None:
    """Seeds shift all methods by 0.02 each, methods differ by 0.01 without other noise."""
    found = results.cells([fabricated({"ensemble": 0.01}, noise=0.0005)])
    assert results.difference(found, "NLL", "deterministic + TS", "ensemble + TS") == (0, 4, 4)


def test_unfinished_tasks_are_shown_but_do_not_hide_methods() -> None:
    found = fabricated({"ensemble": 0.1})
    cut = fabricated({}, names=METHODS[:4], tasks={"snli": ["MNLI"]})
    found["tasks"]["snli"] = cut["tasks"]["snli"]
    text = choosing_page.page([found])
    assert summary(text)[0].startswith("- **ensemble + TS** is ahead of attention noise")
    assert "mean over CLINC150, SST-2 and MRPC" in text
    assert choosing_page.INCOMPLETE in text


def without(found: dict[str, Any], task: str, method: str, seeds: set[int]) -> None:
    """Removes runs of a method."""
    own = found["tasks"][task]
    own["runs"] = [r for r in own["runs"] if r["method"] != method or r["seed"] not in seeds]


def test_a_method_that_lacks_a_task_is_in_no_mean_rank_or_advice() -> None:
    """Even one that is far ahead on the tasks that it has."""
    found = fabricated({"BABN pairs": 0.3, "ensemble": 0.1})
    for name in ("BABN pairs", f"BABN pairs{TS}"):
        without(found, "snli", name, set(range(5)))
    text = choosing_page.page([found])
    head, _, rest = text.partition("### minilm, mean over")
    means, _, of_tasks = rest.partition("### minilm, CLINC150")
    of_tasks, _, _ = of_tasks.partition(
        "### A small language model"
    )  # committed results of other models
    assert "BABN pairs ran on CLINC150, SST-2 and MRPC only, so it is not part of means" in head
    assert head.count("BABN pairs") == 1 and "BABN pairs" not in means
    assert of_tasks.count("| BABN pairs + TS") == 3
    assert "BABN pairs" not in text.partition("## Which differences")[2]
    cells = results.cells([found])
    assert results.over_cells(cells, "BABN pairs", "NLL") == {}


def test_a_method_that_lacks_bad_seeds_is_not_ahead_for_that() -> None:
    """Later seeds are better by 0.02 each, for all methods alike."""
    found = fabricated({"ensemble": 0.01}, noise=0.0)
    without(found, "snli", f"BABN{TS}", {0, 1})
    cells = results.cells([found])
    chosen = [f"ensemble{TS}", f"BABN{TS}", f"deterministic{TS}"]
    ranks, _ = results.mean_ranks(cells, "NLL", chosen)
    assert ranks == {chosen[0]: 1.0, chosen[1]: 2.5, chosen[2]: 2.5}
    shown = results.table(cells, ["NLL"], chosen, with_costs=False)
    assert [row[0] for row in shown.rows] == [chosen[0], f"{chosen[1]} (3 seeds)", chosen[2]]
    assert shown.best == {(0, 1)} and not shown.rows[1][1].endswith("≈")
    assert f"5 seeds (3 of BABN{TS})" in choosing_page.page([found])


def test_the_summary_says_if_the_lead_of_a_rival_is_within_the_noise() -> None:
    names = ["deterministic", "deterministic + TS", "BABN", "BABN + TS"]
    text = choosing_page.page([fabricated({"deterministic": 0.01}, noise=0.02, names=names)])
    first = summary(text)[0]
    assert first.startswith("- **deterministic + TS** ranks first in NLL of test data")
    assert first.endswith("but its lead over attention noise is within the noise of seeds.")


def test_each_shift_and_outside_has_a_line() -> None:
    text = choosing_page.page([fabricated({"SNGP": 0.1})])
    shift, outside = (section(text, n) for n in ("What a shift does", "Inputs of another domain"))
    assert (
        shift.count("\n- ") == 3 and "\n- **MRPC to QQP" in shift and "\n- **SNLI to MNLI" in shift
    )
    assert shift.count("**SNGP + TS** has the best shift NLL") == 3
    assert outside.count("\n- ") == 4 and outside.count("**SNGP + TS** has the best outside") == 4
    assert "By entropy, deterministic + TS has 80." in outside


def test_adapters_are_compared_on_the_tasks_that_have_them() -> None:
    found = fabricated({"SNGP": 0.1})
    own = fabricated({"LoRA ensemble": 0.2}, names=ADAPTERS, tasks={"clinc150": []})
    found["tasks"]["clinc150"]["runs"] += own["tasks"]["clinc150"]["runs"]
    text = choosing_page.page([found])
    assert summary(text)[0].startswith("- **SNGP + TS** is ahead of attention noise")
    advice = section(text, "You train adapters")
    assert "**LoRA ensemble" in advice
    first, best, note = advice.strip().split("\n\n")
    assert first == "These methods were run on CLINC150 only."
    assert best.startswith("- For") and "10 times the learning rate" in note


def test_advice_for_a_guarantee_has_sizes_and_coverage() -> None:
    text = section(
        choosing_page.page([fabricated({"ensemble": 0.1}, 0.0005)]), "You need a guarantee"
    )
    assert "**ensemble" in text and "(set size 1.86 ±" in text
    assert "95.1% of test data, but in 85.0% under a shift" in text


def test_one_task_has_a_page_without_diagrams(tmp_path: Path) -> None:
    found = fabricated({"SNGP": 0.1}, tasks={"clinc150": []})
    text = choosing_page.page([found])
    assert "![" not in text and "Which differences" not in text
    assert "of 1 task |" in text and "96.9" in text
    assert choosing_page.draw([found], tmp_path) == []


def test_the_page_is_added_to_the_navigation_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_pages, "ROOT", tmp_path)
    file = tmp_path / "mkdocs.yml"
    file.write_text("nav:\n  - Use:\n      - Uncertainty: uncertainty.md\n  - End: end.md\n")
    for _ in range(2):
        write_pages.add_to_navigation("choosing.md", "Choose a method", "uncertainty.md")
    assert file.read_text() == (
        "nav:\n  - Use:\n      - Uncertainty: uncertainty.md\n"
        "      - Choose a method: choosing.md\n  - End: end.md\n"
    )


@pytest.mark.parametrize(("winner", "words"), [("SNGP", "with"), ("BABN", "without")])
def test_models_from_scratch_have_a_verdict(winner: str, words: str) -> None:
    found = fabricated({winner: 0.1}, tasks={"cifar10": ["corrupted 1"]})
    [text] = from_scratch_results.verdicts([found])
    assert f"**{winner} + TS** has the lowest NLL (0.36" in text
    assert f"the best method {words} attention noise is" in text


def test_a_method_at_chance_is_never_the_best() -> None:
    found = fabricated({"ensemble": 0.1})
    for task in found["tasks"].values():
        for each in task["runs"]:
            if each["method"].startswith("BABN as published"):
                each["measures"] = {
                    n: {**m, "accuracy": 0.3, "ECE": 0.0} for n, m in each["measures"].items()
                }
    cells = results.cells([found])
    shown = results.table(cells, ["accuracy", "ECE"], results.methods(cells))
    names = [shown.rows[row][0] for row, _ in shown.best]
    assert names and not any(name.startswith("BABN as published") for name in names)


def test_times_come_from_the_run_of_costs(tmp_path: Path) -> None:
    def write(folder: Path, seed: int, method: str, seconds: float) -> None:
        folder.mkdir(exist_ok=True)
        cost = {**COST, "training": seconds, "seconds": seconds}
        record = {"method": method, "seed": seed, "tried": 1, "cost": cost, "measures": {}}
        (folder / f"{method}-{seed}.json").write_text(json.dumps(record))

    for seed, seconds in ((0, 9.0), (1, 1.1)):
        write(tmp_path / "costs", seed, "SNGP", seconds)
    for method in ("SNGP", f"SNGP{TS}", "BAM"):
        write(tmp_path / "runs", 0, method, 5.0)
    about = {"task": "mrpc", "settings": {}, "model": "minilm", "versions": {}, "machine": "a GPU"}
    (tmp_path / "runs" / "about.json").write_text(json.dumps(about))
    runs = results.collect([tmp_path / "runs"], tmp_path / "costs")["tasks"]["mrpc"]["runs"]
    times = {run["method"]: run["cost"].get("training") for run in runs}
    assert times == {"BAM": None, "SNGP": 1.1, f"SNGP{TS}": 1.1}


def test_parts_of_the_template_without_texts_are_left_out() -> None:
    template = (
        "# Page\n\nAlways.\n\n## One\n\nOf {{one}}.\n\n## Two\n\nText.\n\n{{two}}\n\nBy {{three}}."
    )
    filled = choosing_page.fill(template, {"one": "", "two": "Tables", "three": ""})
    assert filled == "# Page\n\nAlways.\n\n## Two\n\nText.\n\nTables\n"


def test_the_method_as_published_predicts_one_class_as_the_template_says() -> None:
    assert "it predicts the same class for all texts" in choosing_page.TEMPLATE.read_text()
    for cell, runs in results.cells(choosing_page.files()).items():
        found = results.values(runs, "BABN as published", "accuracy")
        assert len({*found.values()}) == 1, cell
