"""Many experiments from one file, run side by side."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_experiments import TINY

import babn
from babn.errors import ConfigError
from babn.progress import Progress
from babn_paper.experiments.grids import Grid, find_grid, read_grid, select_tasks, table_grid
from babn_paper.experiments.jobs import run_all
from babn_paper.experiments.records import collect, load_records, save_records
from babn_paper.experiments.run_folder import RunFolder

GRID = """
seeds = [0, 1]
[every]
model = "small"
data = "builtin"
batch_size = 8
steps = 2
[tasks.mrpc]
max_length = 24
[tasks.cola]
[methods.softmax]
[methods.belief]
settings.sigma = 0.0
[cells.cola.belief]
steps = 3
[search]
learning_rate = [1e-3, 1e-4]
[search.belief]
settings.rho = [4, 12]
"""


def grid_of(text: str, folder: Path) -> Grid:
    path = folder / "small.toml"
    path.write_text(text)
    return read_grid(path)


def test_a_method_may_have_seeds_of_its_own(tmp_path: Path) -> None:
    text = GRID.replace("[methods.softmax]\n", "[methods.softmax]\nseeds = [5, 6, 7]\n")
    jobs = grid_of(text, tmp_path).jobs({})
    seeds = {method: {job.experiment.seed for job in jobs if job.experiment.method == method}
             for method in ("softmax", "belief")}  # fmt: skip
    assert seeds == {"softmax": {5, 6, 7}, "belief": {0, 1}}


def test_fields_tried_together_may_have_seeds_of_their_own(tmp_path: Path) -> None:
    together = "[{ steps = 9 }, { steps = 7, seeds = [3] }]"
    text = GRID.replace("[search.belief]\nsettings.rho = [4, 12]", f"belief = {together}")
    jobs = grid_of(text, tmp_path).jobs({})
    tried = {job.folder.parent.name: set() for job in jobs if "steps=" in str(job.folder)}
    for job in jobs:
        if job.folder.parent.name in tried:
            tried[job.folder.parent.name].add(job.experiment.seed)
    assert tried["mrpc-belief+learning_rate=0.001+steps=9"] == {0, 1}
    assert tried["mrpc-belief+learning_rate=0.001+steps=7"] == {3}


def test_a_grid_is_tasks_by_methods_by_values_to_try(tmp_path: Path) -> None:
    grid = grid_of(GRID, tmp_path)
    cells = {cell.label: cell.values for cell in grid.cells}
    assert len(cells) == 2 * (2 + 4)
    jobs = grid.jobs({})
    assert len(jobs) == len(cells) * 2
    one = cells["cola-belief+learning_rate=0.001+settings.rho=4"]
    assert one["settings"] == {"sigma": 0.0, "rho": 4}
    assert one["steps"] == 3
    assert cells["mrpc-softmax+learning_rate=0.0001"]["max_length"] == 24
    job = jobs[0]
    assert job.folder == Path("runs/small/mrpc-softmax+learning_rate=0.001/seed-0")
    assert job.experiment.learning_rate == 1e-3
    assert {job.experiment.batch_size for job in grid.jobs({"batch_size": 4})} == {4}


def test_fields_can_be_tried_together(tmp_path: Path) -> None:
    together = "[{ steps = 9 }, { steps = 7, settings = { rho = 4, beta = 2.0 } }]"
    grid = grid_of(GRID.replace("[search.belief]\nsettings.rho = [4, 12]", ""), tmp_path)
    assert len(grid.cells) == 2 * 2 * 2
    text = GRID.replace("[search.belief]\nsettings.rho = [4, 12]", f"belief = {together}")
    cells = {cell.label: cell.values for cell in grid_of(text, tmp_path).cells}
    assert len(cells) == 2 * (2 + 2 * 2)
    label = "cola-belief+learning_rate=0.001+steps=7+settings.rho=4+settings.beta=2.0"
    assert cells[label]["settings"] == {"sigma": 0.0, "rho": 4, "beta": 2.0}
    assert cells[label]["steps"] == 7
    assert cells["cola-belief+learning_rate=0.001+steps=9"]["settings"] == {"sigma": 0.0}


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[tasks.mrpc]\n[methods.bam]\n[search]\nbam = [3]", r"search\.bam=\[3\]"),
        ("[tasks.mrpc]\n[methods.bam]\n[search]\nbam = []", r"search\.bam=\[\]"),
        ("[every]", "needs at least one"),
        ("[colours]\n[tasks.mrpc]\n[methods.bam]", "colours"),
        ("[tasks", "is not TOML"),
        ("seeds = 3\n[tasks.mrpc]\n[methods.bam]", "seeds=3"),
        ("[tasks.mrpc]\n[methods.bam]\nseeds = 3", "seeds=3"),
        ("[tasks.mrpc]\n[methods.bam]\n[search]\nbam = [{ seeds = 3 }]", "seeds=3"),
        ("tasks.mrpc = 3\n[methods.bam]", "tasks.mrpc is not a table"),
        ("[tasks.mrpc]\n[methods.bam]\n[search]\nsteps = 3", "search steps=3"),
        ("[tasks.mrpc]\n[methods.bam]\n[search.bam]\nmodel = 'ab'", "search model='ab'"),
    ],
)
def test_files_that_are_no_grid_are_refused(text: str, part: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=part):
        grid_of(text, tmp_path)


def test_former_names_are_read(tmp_path: Path) -> None:
    former = GRID.replace("[methods.", "[rules.").replace(
        "[rules.softmax]", '[rules.other]\nrule = "bam"\n[rules.softmax]'
    )
    current = former.replace("[rules.", "[methods.").replace("rule =", "method =")
    assert grid_of(former, tmp_path) == grid_of(current, tmp_path)
    with pytest.raises(ConfigError, match="rules is the former name of methods"):
        grid_of("[rules.bam]\n[methods.bam]\n[tasks.mrpc]", tmp_path)


def test_cells_that_cannot_work_are_refused_before_anything_runs(tmp_path: Path) -> None:
    grid = grid_of("[every]\nmodel='small'\nsteps=-1\n[tasks.mrpc]\n[methods.bam]", tmp_path)
    with pytest.raises(ConfigError, match="steps=-1"):
        grid.jobs({}, tmp_path)
    assert not (tmp_path / "small").exists()


@pytest.mark.parametrize(
    "name", ["glue-bert", pytest.param("glue-roberta", marks=pytest.mark.thorough)]
)
def test_built_in_grids_have_every_task_of_table_1(name: str) -> None:
    path = find_grid(name)
    assert path.read_text().startswith(f"# babn sweep {name} ")
    grid, table = read_grid(path), table_grid("table1", [0])
    assert {cell.label for cell in grid.cells} == {cell.label for cell in table.cells}
    assert len(grid.jobs({})) == 40 * 5
    assert all(job.experiment.method_config().attention_dropout for job in grid.jobs({}))


@pytest.mark.parametrize(("model", "grid"), [("bert", "glue-bert"), ("roberta", "glue-roberta")])
def test_built_in_grids_have_the_settings_of_table_2(model: str, grid: str) -> None:
    cells = {cell.label: cell.values for cell in read_grid(find_grid(grid)).cells}
    table = {cell.label: cell.values for cell in table_grid("table2", [0]).cells}
    named = ("model", "learning_rate", "batch_size", "epochs", "warmup", "weight_decay")
    for method in ("softmax", "bam", "belief", "default"):
        ours, papers = cells[f"mrpc-{method}"], table[f"nli-{model}-{method}"]
        assert {n: ours[n] for n in named} == {n: papers[n] for n in named}


def test_tables_are_in_the_papers_order() -> None:
    grid = table_grid("table1", range(5))
    labels = [cell.label for cell in grid.cells]
    assert labels[:4] == ["mrpc-softmax", "mrpc-bam", "mrpc-belief", "mrpc-default"]
    assert len(labels) == 40
    of_task = table_grid("table2", [0]).cells[:11]
    models = [cell.values["model"].rpartition("/")[2] for cell in of_task]
    assert models == ["decomposable", "esim", *["bert-base-uncased"] * 4, *["roberta-base"] * 5]
    methods = [cell.label.removeprefix("nli-roberta") for cell in of_task[6:]]
    assert methods == ["-softmax", "+label_smoothing=0.1-softmax", "-bam", "-belief", "-default"]
    assert [c.label for c in select_tasks(grid, "rte").cells] == [
        "rte-softmax",
        "rte-bam",
        "rte-belief",
        "rte-default",
    ]
    with pytest.raises(ConfigError, match="no task tre"):
        select_tasks(grid, "tre")
    with pytest.raises(ConfigError, match="Known tables: ablation, efficiency, table1"):
        table_grid("table9", [0])


SIDE_BY_SIDE = """
seeds = [0, 1]
[every]
model = "small"
data = "builtin"
batch_size = 8
steps = 2
max_length = 24
samples = 2
[tasks.mrpc]
[methods.softmax]
[methods.belief]
"""


@pytest.mark.slow
def test_runs_side_by_side_are_done_once_and_failures_stay_alone(tmp_path: Path) -> None:
    jobs = grid_of(SIDE_BY_SIDE, tmp_path).jobs({}, tmp_path)
    bad = grid_of(SIDE_BY_SIDE.replace('"builtin"', '"/nowhere"'), tmp_path)
    bad = Grid("bad", [replace(bad.cells[0], seeds=[0])])
    failed = run_all([*jobs, *bad.jobs({}, tmp_path)], 2, Progress())
    assert list(failed) == [tmp_path / "bad/mrpc-softmax/seed-0"]
    assert "/nowhere" in next(iter(failed.values()))
    assert "Traceback" in (tmp_path / "bad/mrpc-softmax/seed-0/error.txt").read_text()
    records = collect(jobs)
    labels = [record.label for record in records]
    assert labels == ["mrpc-softmax"] * 2 + ["mrpc-ensemble"] + ["mrpc-belief"] * 2
    members = [babn.Evaluation.load(job.folder / "predictions/dev-mean") for job in jobs[:2]]
    probs = torch.stack([member.prediction.probs for member in members]).mean(0)
    expected = babn.metrics.nll(probs, members[0].labels)
    assert records[2].measures["sampled"]["NLL"] == pytest.approx(expected)
    times = [RunFolder(job.folder).results.stat().st_mtime_ns for job in jobs]
    assert run_all(jobs, 2, Progress()) == {}
    assert [RunFolder(job.folder).results.stat().st_mtime_ns for job in jobs] == times
    save_records(records, tmp_path / "all.json", "babn sweep small.toml")
    assert load_records(tmp_path / "all.json") == (records, "babn sweep small.toml")


def test_a_folder_with_another_run_is_refused(tmp_path: Path) -> None:
    grid = grid_of(SIDE_BY_SIDE, tmp_path)
    RunFolder(grid.jobs({}, tmp_path)[0].folder).begin(grid.jobs({})[0].experiment)
    with pytest.raises(ConfigError, match=r"started with batch_size=8 \(now 4\)"):
        run_all(grid.jobs({"batch_size": 4}, tmp_path), 1, Progress())


def test_records_of_runs_that_are_not_done_are_empty(tmp_path: Path) -> None:
    jobs = grid_of(SIDE_BY_SIDE, tmp_path).jobs({}, tmp_path)
    assert [record.results for record in collect(jobs)] == [{}] * 4
    assert json.dumps([record.experiment for record in collect(jobs)])
    assert TINY["task"] == collect(jobs)[0].experiment["task"]
