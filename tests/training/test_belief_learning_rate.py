"""The Trainer's learning rate of what conversion added."""

from pathlib import Path
from typing import Any

import pytest
import torch
from small_training import (
    BeliefTrainerInOrder,
    arguments,
    belief_parameters,
    bert,
    largest_gap,
    one_step_of_descent,
    texts,
)
from torch import Tensor, nn
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

import babn
from babn.errors import ConfigError
from babn.training.trainer import separate

CONFIG = babn.BeliefConfig(rho=1e9, kl_weight=1.0)


def trainer_for(
    folder: Path, rate: float | None, model: nn.Module | None = None, **settings: Any
) -> BeliefTrainerInOrder:
    return BeliefTrainerInOrder(
        babn.convert(bert(), CONFIG) if model is None else model,
        arguments(folder, **{"max_steps": 1, "weight_decay": 0.1, **settings}),
        train_dataset=texts(32),
        belief_learning_rate=rate,
    )


def groups_by_part(trainer: BeliefTrainerInOrder) -> tuple[list[Any], list[Any]]:
    """The groups of the base and those of what conversion added; none has both."""
    added = set(map(id, trainer.model.babn.parameters()))
    base, belief = [], []
    for group in trainer.create_optimizer().param_groups:
        own = {id(p) in added for p in group["params"]}
        assert len(own) == 1
        (belief if own == {True} else base).append(group)
    return base, belief


@pytest.mark.parametrize(("rate", "expected"), [(None, 1e-3), (0.02, 0.02)])
def test_groups_have_their_own_rate_and_no_decay(
    rate: float | None, expected: float, tmp_path: Path
) -> None:
    trainer = trainer_for(tmp_path, rate, learning_rate=1e-3)
    base, belief = groups_by_part(trainer)

    assert {group["lr"] for group in belief} == {expected}
    assert {group["weight_decay"] for group in belief} == {0.0}
    assert {group["lr"] for group in base} == {1e-3}
    assert {group["weight_decay"] for group in base} == {0.0, 0.1}
    found = [p for group in (*base, *belief) for p in group["params"]]
    assert len(found) == len(set(found)) == len(list(trainer.model.parameters()))


def test_the_optimizer_is_made_once(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, 0.02)
    groups = list(trainer.create_optimizer().param_groups)
    assert list(trainer.create_optimizer().param_groups) == groups


def moved(before: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach() - before[name] for name, p in model.named_parameters()}


def test_a_step_moves_each_part_at_its_own_rate(tmp_path: Path) -> None:
    """Plain descent: the parts that conversion added move by another multiple of the gradient."""
    found = []
    for rate in (None, 0.4):
        model = babn.convert(bert(), CONFIG)
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        torch.manual_seed(0)
        BeliefTrainerInOrder(
            model,
            one_step_of_descent(tmp_path, learning_rate=0.1),
            train_dataset=texts(),
            belief_learning_rate=rate,
        ).train()
        found.append(moved(before, model))
    usual, own = found
    assert any(usual[name].any() for name in usual if "babn." in name)
    for name, step in usual.items():
        factor = 4.0 if "babn." in name else 1.0
        torch.testing.assert_close(own[name], factor * step, rtol=1e-4, atol=1e-6, msg=name)


def test_schedules_apply_to_both_parts(tmp_path: Path) -> None:
    trainer = trainer_for(
        tmp_path, 0.02, learning_rate=1e-3, max_steps=4, lr_scheduler_type="linear"
    )
    trainer.create_optimizer_and_scheduler(4)
    rates = []
    for _ in range(4):
        rates.append([group["lr"] for group in trainer.optimizer.param_groups])
        trainer.optimizer.step()
        trainer.lr_scheduler.step()
    for step, found in enumerate(rates):
        share = 1 - step / 4
        assert found == pytest.approx([1e-3 * share] * 2 + [0.02 * share] * 2)


@pytest.mark.thorough
def test_resuming_continues_as_if_there_had_been_no_break(tmp_path: Path) -> None:
    steps = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "learning_rate": 1e-3}
    steps["lr_scheduler_type"] = "linear"
    whole = trainer_for(tmp_path / "whole", 0.02, **steps)
    whole.train()
    resumed = trainer_for(tmp_path / "resumed", 0.02, **steps)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))

    assert largest_gap(whole.model, resumed.model) < 1e-5
    rates = [[g["lr"] for g in each.optimizer.param_groups] for each in (whole, resumed)]
    assert rates[0] == rates[1] and len(rates[0]) == 4


def test_a_frozen_base_trains_with_the_own_rate(tmp_path: Path) -> None:
    model = babn.freeze_base(babn.convert(bert(), CONFIG), ())
    trainer = trainer_for(tmp_path, 0.02, model)
    before = belief_parameters(model)
    trainer.train()
    trained = [group for group in trainer.optimizer.param_groups if group["params"]]
    assert {group["lr"] for group in trained} == {0.02}
    assert any(not torch.equal(p, before[n]) for n, p in belief_parameters(model).items())


def test_other_trainers_have_it_by_the_mixin(tmp_path: Path) -> None:
    class Trainer(babn.BeliefTrainerMixin, Seq2SeqTrainer):
        pass

    settings = Seq2SeqTrainingArguments(str(tmp_path), use_cpu=True, report_to=[])
    trainer = Trainer(babn.convert(bert(), CONFIG), settings, belief_learning_rate=0.02)
    assert [group["lr"] for group in trainer.create_optimizer().param_groups][-1] == 0.02


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf"), "fast", True])
def test_impossible_rates_are_refused(rate: Any, tmp_path: Path, as_installed: None) -> None:
    with pytest.raises(ConfigError, match=rf"belief_learning_rate={rate!r}.*greater than 0"):
        trainer_for(tmp_path, rate)


def test_an_optimizer_of_ones_own_keeps_its_groups(tmp_path: Path) -> None:
    model = babn.convert(bert(), CONFIG)
    own = torch.optim.SGD(model.parameters(), lr=0.1)
    data = {"train_dataset": texts(), "optimizers": (own, None)}
    trainer = babn.BeliefTrainer(model, arguments(tmp_path, max_steps=1), **data)
    assert len(trainer.create_optimizer().param_groups) == 1
    with pytest.raises(ConfigError, match=r"belief_learning_rate=0\.02.*your own optimizer"):
        babn.BeliefTrainer(model, arguments(tmp_path), **data, belief_learning_rate=0.02)


def test_a_rate_without_parameters_to_train_is_refused(tmp_path: Path) -> None:
    model = babn.convert(bert(), CONFIG)
    model.babn.requires_grad_(False)
    with pytest.raises(ConfigError, match=r"belief_learning_rate=0\.02, but AdamW trains none"):
        trainer_for(tmp_path, 0.02, model).create_optimizer()
    assert len(trainer_for(tmp_path, None, model).create_optimizer().param_groups) == 2


def test_options_of_groups_stay() -> None:
    one, two = (nn.Parameter(torch.ones(2)) for _ in range(2))
    optimizer = torch.optim.SGD(
        [{"params": [one, two], "momentum": 0.9, "weight_decay": 0.3}], lr=0.1
    )
    separate(optimizer, {two}, 0.5)
    first, second = optimizer.param_groups
    assert first["params"] == [one] and (first["lr"], first["weight_decay"]) == (0.1, 0.3)
    assert second["params"] == [two] and (second["lr"], second["weight_decay"]) == (0.5, 0.0)
    assert second["momentum"] == 0.9
