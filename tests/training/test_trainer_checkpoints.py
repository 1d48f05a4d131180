"""What the Trainer writes can be read again: checkpoints, the best model, the last model."""

from pathlib import Path
from typing import Any

import pytest
import torch
from small_training import (
    BELIEF,
    BeliefTrainerInOrder,
    arguments,
    batch_of,
    belief_parameters,
    bert,
    largest_gap,
    texts,
    training_logs,
    without_noise,
)
from torch import nn
from transformers import TrainerCallback

import babn

ANNEALING = babn.KLAnnealing(weight=1.0, warmup=1.0)


def trainer_for(folder: Path, **settings: Any) -> BeliefTrainerInOrder:
    steps = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "learning_rate": 1e-3}
    return BeliefTrainerInOrder(
        babn.convert(bert(), without_noise()),
        arguments(folder, **{**steps, **settings}),
        train_dataset=texts(32),
        eval_dataset=texts(8, seed=1),
        annealing=ANNEALING,
    )


def test_resuming_continues_as_if_there_had_been_no_break(tmp_path: Path) -> None:
    whole = trainer_for(tmp_path / "whole")
    whole.train()
    resumed = trainer_for(tmp_path / "resumed")
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert largest_gap(whole.model, resumed.model) < 1e-6
    weights = [entry["kl_weight"] for entry in training_logs(resumed)]
    assert weights == pytest.approx([0.0, 0.25, 0.5, 0.75])


class AtTheBeginning(TrainerCallback):
    """Notes the belief parameters with which training begins."""

    def on_train_begin(self, *args: Any, model: nn.Module, **kwargs: Any) -> None:
        self.parameters = belief_parameters(model)


@pytest.mark.thorough
def test_resuming_begins_with_the_saved_belief_parameters(tmp_path: Path) -> None:
    trainer_for(tmp_path / "first").train()
    saved = belief_parameters(babn.load(tmp_path / "first" / "checkpoint-2"))
    resumed, beginning = trainer_for(tmp_path / "second"), AtTheBeginning()
    resumed.add_callback(beginning)
    resumed.train(resume_from_checkpoint=str(tmp_path / "first" / "checkpoint-2"))
    assert len(saved) == len(beginning.parameters) > 0
    assert all(torch.equal(p, saved[name]) for name, p in beginning.parameters.items())


def test_best_model_is_loaded_at_the_end(tmp_path: Path) -> None:
    trainer = trainer_for(
        tmp_path,
        eval_strategy="steps",
        eval_steps=2,
        load_best_model_at_end=True,
        metric_for_best_model="score",
    )
    scores = iter([1.0, 0.0])
    trainer.compute_metrics = lambda _: {"score": next(scores)}
    trainer.train()
    best, last = (belief_parameters(babn.load(tmp_path / f"checkpoint-{n}")) for n in (2, 4))
    found = belief_parameters(trainer.model)
    assert all(torch.equal(p, best[name]) for name, p in found.items())
    assert not any(torch.equal(p, last[name]) for name, p in found.items())


def test_saved_model_is_loaded_with_its_weight(tmp_path: Path) -> None:
    model = babn.convert(bert(), BELIEF)
    trainer = babn.BeliefTrainer(
        model, arguments(tmp_path, max_steps=2), train_dataset=texts(), annealing=ANNEALING
    )
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    loaded, batch = babn.load(tmp_path / "saved"), batch_of(texts())
    assert torch.equal(loaded(**batch).logits, model.eval()(**batch).logits)
    assert babn.get_kl_weight(loaded) == pytest.approx(0.5)
