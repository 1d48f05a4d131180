"""How processes divide the work of a comparison."""

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest
import sharing
import torch
from torch import nn

from babn_paper.method_comparison import SOFTMAX, Models, Problem, Variant
from babn_paper.method_comparison.method_catalogue import find_methods


def problem(train: Callable[..., None]) -> Problem:
    return Problem(lambda: nn.Linear(2, 2), train, [], [])


def test_each_unit_is_done_once_and_failures_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = []

    def fail() -> None:
        raise ValueError("no such file")

    units = [("a 0", lambda: done.append("a")), ("b 0", fail), ("c, 0", lambda: done.append("c"))]
    for _ in range(2):
        sharing.work(units, tmp_path)
    assert done == ["a", "c"]
    assert capsys.readouterr().out.count("FAILED b 0: ValueError: no such file") == 1
    assert "in fail" in (tmp_path / "errors.txt").read_text()


@pytest.mark.parametrize("fails", [False, True])
def test_memory_is_given_back_after_each_unit(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a model in a reference cycle too, as one that a trainer holds."""
    alive: list[weakref.ref[nn.Module]] = []
    seen = []

    def train() -> None:
        model = nn.Linear(2, 2)
        model.trainer = [model]  # type: ignore[assignment]
        alive.append(weakref.ref(model))
        if fails:
            raise RuntimeError("out of memory")

    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: seen.append(alive[-1]()))
    gc.disable()
    try:
        sharing.work([("train 0", train), ("train 1", train)], tmp_path)
    finally:
        gc.enable()
    assert seen == [None, None]


def test_times_are_not_compared_with_those_of_processes_beside(tmp_path: Path) -> None:
    """For which the deterministic model would be trained."""
    nothing = problem(lambda *arguments: None)
    assert not sharing.SharedModels(nothing, tmp_path).timed
    assert sharing.SharedModels(nothing).timed and Models(nothing, tmp_path).timed


def test_processes_train_each_model_once(tmp_path: Path) -> None:
    trained = []

    def train(model: nn.Module, variant: Variant, seed: int) -> None:
        trained.append(seed)
        nn.init.constant_(model.weight, seed)  # type: ignore[arg-type]

    found: list[torch.Tensor] = []

    def get() -> None:
        model = sharing.SharedModels(problem(train), tmp_path).get(SOFTMAX, 3)
        found.append(model.weight.detach())  # type: ignore[arg-type]

    threads = [Thread(target=get) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert trained == [3]
    assert len(found) == 4 and all((each == 3).all() for each in found)


def test_a_failed_training_is_tried_again(tmp_path: Path) -> None:
    def train(*_: object) -> None:
        raise RuntimeError("out of memory")

    models = sharing.SharedModels(problem(train), tmp_path)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="out of memory"):
            models.get(SOFTMAX, 0)


def test_evaluations_follow_their_trainings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "LAG", 2)
    models = Models(problem(lambda *_: None))
    methods = find_methods(["deterministic", "deterministic + TS", "SNGP", "ensemble"])
    due = sharing.evaluations(models, methods, [0, 1], {}, tmp_path)
    names = [name for name, _ in sharing.schedule(models, due)]
    trained = [f"train softmax {1000 * i + seed}" for seed in (0, 1) for i in range(1, 5)]
    assert [name for name in names if name.startswith("train")] == [
        *("train softmax 0", "train softmax 1", "train SNGP 0", "train SNGP 1"),
        *trained,
    ]
    assert names.index("deterministic 0") == 3
    for name, need in {"SNGP 1": "train SNGP 1", "ensemble 0": "train softmax 4000"}.items():
        assert names.index(name) > names.index(need)
    assert len(names) == len(set(names)) == 18
    (tmp_path / "SNGP-1.json").write_text("{}")
    due = sharing.evaluations(models, methods, [0, 1], {}, tmp_path)
    assert "SNGP 1" not in [f"{each.name} {each.seed}" for each in due]
