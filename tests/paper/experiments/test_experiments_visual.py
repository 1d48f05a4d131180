"""Runs of questions about images, from configuration to table."""

from pathlib import Path
from typing import Any

import pytest
import torch
from small_experiments import StopsAt, same_weights

from babn.errors import ConfigError, DataError
from babn_paper.experiments.config_files import built_in, find_config, read_experiment
from babn_paper.experiments.evaluation import evaluate, remeasure
from babn_paper.experiments.experiment import Experiment
from babn_paper.experiments.grids import quick, read_grid, table_grid
from babn_paper.experiments.records import Record
from babn_paper.experiments.result_pages import main_table
from babn_paper.experiments.run import run
from babn_paper.experiments.task_tables import visual_tables
from babn_paper.experiments.training_state import mcan_schedule, prepare_training
from babn_paper.tasks.catalogue import find_task
from vqa_cases import tiny

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_a_run_has_both_parts_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    experiment = tiny(method="belief", checkpoint_every=2)
    results = run(experiment, tmp_path / "whole")
    measures = results["measures"]

    assert list(measures) == ["test", "noisy", "dev"]
    assert {"accuracy", "ECE-10", "NLL", "accuracy (color)"} <= set(measures["test"]["mean"])
    assert {"PAvPU (p<0.05)", "error AUROC (mutual information)"} <= set(
        measures["noisy"]["sampled"]
    )
    assert measures["test"]["mean"]["NLL"] != measures["noisy"]["mean"]["NLL"]
    again = remeasure(tmp_path / "whole")["measures"]["test"]["sampled"]
    assert again == pytest.approx(measures["test"]["sampled"], nan_ok=True)
    with pytest.raises(RuntimeError, match="crash"):
        run(experiment, tmp_path / "cut", progress=StopsAt(3))
    run(experiment, tmp_path / "cut", resume=True)
    assert same_weights(tmp_path / "whole", tmp_path / "cut")

    more = evaluate(tmp_path / "whole", parts=["noisy=1"], samples=2)
    assert list(more["measures"]) == ["noisy=1"]
    assert (tmp_path / "whole/results.json").exists()


def test_belief_maps_are_as_long_as_images_have_regions() -> None:
    state = prepare_training(tiny(method="belief"))
    assert state.model.babn.config.max_length == 16  # 4 by 4 regions, more than words
    batch = next(state.micro_batches(0)).batch
    assert batch["pixel_values"].shape == (8, 3, 32, 32)
    assert batch["labels"].sum(-1).tolist() == [1.0] * 8
    assert set(batch) == {"input_ids", "attention_mask", "pixel_values", "labels"}


@pytest.mark.parametrize(
    "method",
    ["softmax", "bam", "belief"],
)
@pytest.mark.slow
def test_shapes_can_be_learnt(method: str) -> None:
    """Twenty questions by heart, with attention of every kind."""
    torch.manual_seed(0)
    state = prepare_training(
        tiny(method=method, settings={} if method == "softmax" else {"kl_weight": 0.0})
    )
    batch = state.data.batch(torch.arange(20))
    optimizer = torch.optim.Adam(state.model.parameters(), 1e-3)
    losses = []
    for _ in range(50):
        optimizer.zero_grad()
        loss = state.model(**batch).loss
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 4


def test_table_5_and_the_ablation_have_the_papers_cells() -> None:
    cells = {name: read_experiment(find_config(name)) for name in built_in("table5")}
    assert {each.method for each in cells.values()} == {"softmax", "bam", "belief"}
    belief = cells["table5/vqa2-belief"]
    assert (belief.task, belief.model, belief.batch_size, belief.beta2) == (
        "vqa2",
        "mcan",
        64,
        0.98,
    )
    ablation = [read_experiment(find_config(name)) for name in built_in("ablation")]
    configs = [e.method_config() for e in ablation]
    pairs = {(c.rho, c.sigma) for c in configs}
    assert pairs == {(0.0, 1e-6), (1.5, 0.0), (1.5, 1e-6)}
    for cell in quick(table_grid("table5", [0])).cells:
        assert Experiment.from_dict(cell.values).data == "generated"


def test_the_rates_are_those_of_mcan() -> None:
    rates = [round(1e-4 * mcan_schedule(epoch * 100, 1300), 8) for epoch in range(13)]
    assert rates == pytest.approx([2.5e-5, 5e-5, 7.5e-5, *[1e-4] * 7, 2e-5, 2e-5, 4e-6], rel=1e-6)


@pytest.mark.parametrize("name", ["vqa-easy", "vqa-daquar"])
def test_sweeps_can_be_read(name: str) -> None:
    """Three methods and the two parts of the ablation that take something away, thrice each."""
    grid = read_grid(ROOT / "paper" / "sweeps" / f"{name}.toml")
    jobs = grid.jobs({"data": "DIR"})
    assert len(jobs) == 15
    found = {(job.experiment.method, str(dict(job.experiment.settings))) for job in jobs}
    assert found == {
        ("softmax", "{}"), ("bam", "{'kl_weight': 0.003}"),
        ("belief", "{'rho': 1.5, 'kl_weight': 0.003}"),
        ("belief", "{'rho': 1.5, 'kl_weight': 0.003, 'sigma': 0.0}"),
        ("belief", "{'rho': 0.0, 'kl_weight': 0.003}"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"task": "mrpc", "model": "mcan", "data": "builtin"}, "has no images, which model"),
        ({"model": "albert-base"}, "takes no images"),
        ({"model": "mcan-small", "sizes": {"width": 3}}, "sizes.width=3"),
        ({"model": "mcan-small", "sizes": {"num_labels": 3}}, "sizes.num_labels=3"),
        ({"data": "hub"}, "data='hub'"),
        ({"data": "nowhere"}, "not a folder"),
        ({"method": "belief", "settings": {"max_length": 15}}, "settings.max_length=15"),
    ],
)
def test_what_cannot_work_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        prepare_training(tiny(**fields))


def test_sizes_are_for_images_only() -> None:
    with pytest.raises(ConfigError, match="sizes="):
        tiny(sizes={"hidden_size": 32})
    with pytest.raises(ConfigError, match="beta2"):
        tiny(beta2=1.0)


def record(label: str, method: str, mode: str, accuracy: float, pavpu: float) -> Record:
    paper = {"accuracy (test)": "66.92", "accuracy (noisy)": "64.40", "PAvPU (test)": "72.21"}
    experiment = {"task": "vqa2", "model": "mcan", "method": method, "seed": 0, "paper": paper}
    values = {"accuracy": accuracy, "PAvPU (p<0.05)": pavpu}
    measures = {part: {mode: values} for part in ("test", "noisy")}
    return Record(label, experiment, {"measures": measures, "parameters": 1}, {})


def test_the_table_shows_original_and_noisy_data_beside_the_papers() -> None:
    table = main_table(
        [
            record("vqa2+rho=0-belief", "belief", "sampled", 0.5, 0.6),
            record("vqa2-softmax", "softmax", "mean", 0.6, 0.6),
        ]
    )
    belief, softmax = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
    assert belief["attention"] == "BABN, rho=0"
    assert belief["PAvPU"] == "60.0 / 60.0" and belief["PAvPU, paper"] == "72.21 / –"
    assert belief["accuracy, paper"] == "–" and softmax["accuracy, paper"] == "66.92 / 64.40"


def test_further_tables_show_kinds_of_questions_and_levels_of_noise() -> None:
    values = {
        "accuracy": 0.5,
        "accuracy (color)": 0.25,
        "accuracy (one answer for all)": 0.3,
        "mean confidence": 0.75,
        "ECE-10": 0.125,
    }
    experiment = {"task": "easy-vqa", "model": "mcan", "method": "belief", "seed": 0, "paper": {}}
    measures = {part: {"sampled": values} for part in ("test", "noisy", "noisy=2", "dev")}
    kinds, noise = visual_tables(
        [Record("easy-vqa-belief", experiment, {"measures": measures}, {})]
    )

    assert list(kinds.columns) == ["attention", "prediction", "color", "one answer for all"]
    assert list(kinds.rows[0]) == ["BABN", "sampled", "25.0 / 25.0", "30.0"]
    assert list(noise.columns) == ["attention", "prediction", "0", "2", "5"]
    assert noise.rows[0][2] == "50.0 / 75.0 / 12.5"
    assert not visual_tables([Record("mrpc-belief", experiment | {"task": "mrpc"}, {}, {})])


def typed(label: str, seed: int, counts: dict[str, float], accuracy: float) -> Record:
    values = {"accuracy": 0.5}
    for name, count in counts.items():
        values |= {f"accuracy [{name}]": accuracy, f"questions [{name}]": count}
    experiment = {"task": "vqa2", "model": "mcan", "method": "belief", "seed": seed, "paper": {}}
    measures = {part: {"sampled": values} for part in ("test", "noisy")}
    return Record(label, experiment, {"measures": measures}, {})


def test_a_further_table_shows_types_of_questions() -> None:
    counts = {f"type {i}": 40.0 - i for i in range(20)}
    seeds = [typed("vqa2-belief", seed, counts, 0.25 + seed / 2) for seed in (0, 1)]
    before = typed("vqa2+rho=0-belief", 0, {}, 0.0)  # was tested when there were no types
    (table,) = visual_tables([*seeds, before])

    assert list(table.columns) == [
        *("question type", "questions", "BABN, sampled", "BABN, rho=0, sampled")
    ]
    assert len(table.rows) == 15
    assert list(table.rows[0]) == ["type 0", "40", "50.0 ± 35.4 / 50.0 ± 35.4", "– / –"]
    assert [row[1] for row in table.rows[:14]] == [str(40 - i) for i in range(14)]
    rest = sum(40 - i for i in range(14, 20))
    assert list(table.rows[14][:2]) == ["other (6 types)", str(rest)]


def test_levels_of_noise_are_an_option() -> None:
    task = find_task("easy-vqa", {"noise": [1, 2.5]})
    assert task.test_parts == ("test", "noisy", "dev", "noisy=1", "noisy=2.5")
    for options, message in (
        ({"noise": 3}, "options.noise=3"),
        ({"noise": [-1]}, "noisy=-1"),
        ({"beam": 3}, "options.beam"),
    ):
        with pytest.raises((ConfigError, DataError), match=message):
            find_task("easy-vqa", options)
