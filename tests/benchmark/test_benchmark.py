"""The benchmark: what it measures, and how it reads."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from typer.testing import CliRunner

import babn
from babn.benchmark import results, suite
from babn.benchmark.results import Cost, Row, Size
from babn.benchmark.steps import (
    compiled,
    generation,
    make_batch,
    make_model,
    sampled,
    training_step,
)
from babn.benchmark.timing import measure, measure_in_turns
from babn.cli._app import app
from babn.cli.bench import bench
from babn.errors import BabnError

CPU = torch.device("cpu")
TINY = Size(12, 2, layers=2, width=16, heads=2)


def row(name: str, form: str, seconds: float | None, memory: int | None = None) -> Row:
    cost = None if seconds is None else Cost(seconds, 0.0, memory)
    return Row("train", name, form, TINY, cost)


@pytest.mark.gpu
def test_a_step_on_a_gpu_has_time_memory_and_kernels() -> None:
    device = torch.device("cuda")

    def step() -> None:
        time.sleep(0.02)
        torch.ones(2**20, device=device) + 1

    cost = measure(step, device, repeats=3)
    assert 0.02 <= cost.seconds < 0.2 and cost.memory and cost.memory >= 2**23
    assert cost.busy and 0 < cost.busy < cost.seconds and cost.kernels


def test_measured_time_is_the_time_a_step_takes() -> None:
    def step() -> None:
        time.sleep(0.02)

    (cost,) = measure_in_turns([step], repeats=3)
    assert 0.02 <= cost.seconds < 0.2 and cost.memory is None


def test_steps_are_measured_in_turns() -> None:
    calls: list[str] = []
    costs = measure_in_turns([lambda: calls.append("a"), lambda: calls.append("b")], repeats=2)
    assert calls == ["a", "b"] * 3 and len(costs) == 2


def test_a_training_step_changes_all_parameters_of_the_method() -> None:
    model = make_model(TINY, babn.BeliefConfig.pairs(upward="heads"), CPU)
    before = {name: p.detach().clone() for name, p in model.babn.named_parameters()}
    training_step(model, make_batch(TINY, CPU), form="eager")()
    changed = [n for n, p in model.babn.named_parameters() if not torch.equal(p, before[n])]
    # A common number added to all log shapes of the prior changes nothing.
    assert set(before) - set(changed) <= {n for n in before if n.endswith("outer.bias")}


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # torch.compile warns
@pytest.mark.parametrize("method", [None, babn.BeliefConfig.pairs(upward="heads")])
def test_a_step_of_cuda_graphs_trains(method: babn.MethodConfig | None) -> None:
    device = torch.device("cuda")
    model = make_model(TINY, method, device)
    step = training_step(model, make_batch(TINY, device), form="graphs")
    for _ in range(3):
        step()
    before = [p.detach().clone() for p in model.parameters()]
    step()
    changed = [not torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True)]
    assert sum(changed) > 0.8 * len(changed)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # torch.compile warns
@pytest.mark.parametrize("method", [babn.BeliefConfig(rho=0.5), babn.BamConfig()])
def test_replays_of_cuda_graphs_draw_new_noise(method: babn.MethodConfig) -> None:
    device = torch.device("cuda")
    model = make_model(TINY, method, device).train()
    run, batch, losses = compiled(model, "graphs"), make_batch(TINY, device), []
    for _ in range(6):
        loss = run(**batch).loss
        loss.backward()
        losses.append(loss.item())
        model.zero_grad()  # gradients in the memory of a graph would be overwritten
    assert len(set(losses)) == 6


def test_key_maps_are_as_large_as_the_texts_are_long() -> None:
    model = make_model(TINY, babn.BeliefConfig.pairs(), CPU)
    assert model.babn.config.max_length == TINY.length


@pytest.mark.parametrize(("form", "passes"), [("pass", [1]), ("batched", [4])])
def test_samples_are_of_one_text(form: str, passes: list[int]) -> None:
    model = make_model(TINY, babn.BeliefConfig(), CPU)
    rows: list[int] = []
    model.register_forward_pre_hook(
        lambda _, args, kwargs: rows.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    sampled(model, make_batch(TINY, CPU), samples=4, form=form)()
    assert rows == passes


def test_a_decoder_generates_with_one_sample() -> None:
    size = replace(TINY, heads=4, width=32, model="llama")
    model = make_model(size, babn.BeliefConfig(), CPU)
    lengths: list[int] = []
    model.register_forward_pre_hook(
        lambda _, args, kwargs: lengths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    generation(model, make_batch(size, CPU), tokens=3)()
    assert lengths == [12, 1, 1]
    training_step(model, make_batch(size, CPU), form="eager")()


@pytest.mark.thorough
def test_every_method_is_measured_once_in_every_form() -> None:
    groups = suite.plan([TINY], ["eager"], list(suite.CONFIGS))
    rows = list(suite.run(groups, 1, CPU, lambda text: None))
    trained = {r.name for r in rows if r.task == "train"}
    assert trained == {"softmax", "BABN", "BABN pairs", "BABN heads", "BAM"}
    keys = {(r.task, r.name, r.form) for r in rows}
    assert len(keys) == len(rows) == 2 * 5 + 2 * 4
    assert all(r.cost is not None and r.cost.seconds > 0 for r in rows)


def test_methods_that_take_much_memory_end_at_a_length() -> None:
    sizes = replace(TINY, length=128), replace(TINY, length=8192)
    groups = suite.plan(sizes, ["compiled"], ["softmax", "BABN pairs"])
    found = {(row.name, row.size.length) for group in groups for row in group}
    assert found == {("softmax", 128), ("softmax", 8192), ("BABN pairs", 128)}


def test_only_methods_that_take_too_much_memory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BabnError, match="--lengths up to 2048"):
        bench(out=tmp_path / "bench.json", methods="pairs", lengths="8192")


def test_forms_are_shown_side_by_side() -> None:
    rows = [
        row("softmax", "eager", 2.0, 2**30),
        row("softmax", "compiled", 1.0, 2**30),
        row("BABN", "eager", 3.0, 2**31),
        row("BABN", "compiled", 1.5, 3 * 2**30),
    ]
    headings, lines = results.shown(rows, "train")
    each = ["x softmax", "GiB", "x softmax"]
    assert headings == ["method", "tokens", "batch", "eager ms", *each, "compiled ms", *each]
    assert lines[0] == ["softmax", "12", "2", "2000.0", "1.00", "1.0", "1.00", "1000.0", "1.00",
                        "1.0", "1.00"]  # fmt: skip
    assert lines[1] == ["BABN", "12", "2", "3000.0", "1.50", "2.0", "2.00", "1500.0", "1.50",
                        "3.0", "3.00"]  # fmt: skip


def test_samples_are_shown_in_passes() -> None:
    rows = [
        replace(row("BABN", form, s), task="sample")
        for form, s in {"pass": 1.0, "batched": 2.5}.items()
    ]
    headings, lines = results.shown(rows, "sample")
    assert headings[-1] == "in passes" and lines[0][-3:] == ["1000.0", "2500.0", "2.50"]


def test_out_of_memory_is_reported() -> None:
    rows = [row("softmax", "eager", 1.0, 2**30), row("BABN", "eager", None)]
    assert results.shown(rows, "train")[1][1][3:] == ["out of memory", "-", "-", "-"]


def test_columns_without_measurements_are_left_out() -> None:
    rows = [row("softmax", "eager", 1.0), row("BABN", "eager", 1.5)]
    columns, lines = results.shown(rows, "train")
    assert columns == ["method", "tokens", "batch", "eager ms", "x softmax"]
    assert lines[1] == ["BABN", "12", "2", "1500.0", "1.50"]
    assert [title for title, *_ in results.tables(rows)] == [results.TITLES["train"]]


def test_a_new_measurement_replaces_the_old_one() -> None:
    old = [row("softmax", "eager", 1.0), row("BABN", "eager", 2.0)]
    new = [row("BABN", "eager", 3.0), row("BABN", "compiled", 1.0)]
    assert results.merged(old, new) == [old[0], *new]


def test_plain_values_are_read_back() -> None:
    cost = Cost(0.5, 0.1, 2**30, 0.4, [{"name": "attend", "seconds": 0.3, "calls": 12}])
    rows = [row("softmax", "eager", None), Row("train", "BABN", "graphs", TINY, cost)]
    written = json.dumps(results.plain(rows, {}))
    assert results.rows_of(json.loads(written)) == rows


def test_the_command_prints_tables_and_writes_numbers(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    runner = CliRunner(env={"COLUMNS": "100", "NO_COLOR": "1"})
    result = runner.invoke(app(), ["bench", "--quick", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "Training step" in result.output and "BABN" in result.output
    found = json.loads(out.read_text())
    assert found["versions"]["torch"] == torch.__version__
    assert 0 <= (datetime.now(UTC).date() - date.fromisoformat(found["date"])).days <= 1
    assert list(tmp_path.iterdir()) == [out]
    assert {r["task"] for r in found["rows"]} == {"train", "mean", "sample"}


def test_an_interruption_keeps_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object) -> Iterator[Row]:
        yield row("softmax", "eager", 1.0, 2**30)
        raise KeyboardInterrupt

    out = tmp_path / "new" / "bench.json"
    monkeypatch.setattr(suite, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench(out=out)
    found = json.loads(out.read_text())
    assert [each.name for each in results.rows_of(found)] == ["softmax"]


@pytest.mark.parametrize("text", ["", "mine", "[]", "{}"])
def test_other_files_are_left_alone(text: str, tmp_path: Path) -> None:
    out = tmp_path / "notes.json"
    out.write_text(text)
    with pytest.raises(BabnError, match=r"not written by babn bench: name another file"):
        bench(out=out)
    assert out.read_text() == text
    with pytest.raises(BabnError, match="is not a regular file"):
        bench(out=tmp_path)


def test_what_does_not_fit_into_memory_has_no_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(step: object, device: object, repeats: int) -> Cost:
        if step == "BABN":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80.00 GiB.")
        return Cost(1.0, 0.0, 2**30)

    monkeypatch.setattr(suite, "free", lambda device: None)
    monkeypatch.setattr(suite, "measure", measure)
    monkeypatch.setattr(suite, "make_step", lambda row, device: row.name)
    groups = suite.plan([TINY, replace(TINY, length=14)], ["graphs"], ["softmax", "BABN"])
    rows = list(suite.run(groups, 1, torch.device("cuda"), lambda text: None))
    # Training and prediction at two lengths, and samples.
    assert [len(group) for group in groups] == [2, 2, 2, 2, 2] and len(rows) == 10
    assert all((each.cost is None) == (each.name == "BABN") for each in rows)


def test_runs_are_merged_into_one_file(tmp_path: Path) -> None:
    out, runner = tmp_path / "bench.json", CliRunner()
    for methods in ("softmax", "bam"):
        arguments = ["bench", "--quick", "--methods", methods, "--out", str(out)]
        assert runner.invoke(app(), arguments).exit_code == 0
    found = {(r["task"], r["name"]) for r in json.loads(out.read_text())["rows"]}
    assert found >= {("train", "softmax"), ("train", "BAM"), ("sample", "BAM")}


@pytest.mark.parametrize(
    ("option", "remedy"),
    [("forms", "eager, compiled, graphs"), ("methods", "softmax, keys"), ("lengths", "numbers")],
)
def test_impossible_options_are_refused_with_a_remedy(option: str, remedy: str) -> None:
    with pytest.raises(BabnError, match=rf"--{option} 'x' is invalid.*{remedy}"):
        bench(**cast(Any, {option: "x"}))
