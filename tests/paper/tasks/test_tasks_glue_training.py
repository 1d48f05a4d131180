"""Every task from its built-in texts to saved predictions, with small models."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import babn
from babn.attention.method import MethodConfig
from babn.text import word_tokenizer
from babn_paper.pretrained import small_sizes
from babn_paper.tasks.encoded import Encoded
from babn_paper.tasks.glue import SST2, TASKS, GlueTask

pytestmark = pytest.mark.thorough

LENGTH = 48
METHODS = {"softmax": babn.SoftmaxConfig(), "belief": babn.BeliefConfig.pairs(max_length=LENGTH)}


def prepared(task: GlueTask, method: MethodConfig) -> tuple[nn.Module, Encoded, Encoded]:
    """A converted small model, and the encoded parts of the task."""
    train, dev = task.read("builtin", "train"), task.read("builtin", "dev")
    tokenizer = word_tokenizer(task.texts(train.examples))
    torch.manual_seed(0)
    model = babn.convert(task.make_model(small_sizes(len(tokenizer), LENGTH)), method)
    encoded = [task.encode(part, tokenizer, LENGTH, part is train) for part in (train, dev)]
    return model, *encoded


def losses(model: nn.Module, encoded: Encoded, steps: int, rate: float) -> list[float]:
    """Trains for some steps."""
    optimizer = torch.optim.AdamW(model.parameters(), rate)
    found = []
    for _ in range(steps):
        loss = model(**encoded.batch(torch.randint(len(encoded), (8,)))).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def outputs_of(encoded: Encoded, outputs: Callable[[dict[str, Tensor]], Tensor]) -> Iterator[tuple]:
    """Outputs batch by batch, the last examples first."""
    for rows in torch.arange(len(encoded)).flip(0).split(16):
        with torch.no_grad():
            yield rows, outputs(encoded.batch(rows))


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_tasks_train_answer_and_measure(
    task: GlueTask, method: MethodConfig, tmp_path: Path
) -> None:
    model, train, dev = prepared(task, method)
    assert all(loss < 20 for loss in losses(model.train(), train, 2, 1e-3))
    model.eval()
    ways = {
        "mean": lambda batch: task.output(model(**batch)).unsqueeze(0),
        "samples": lambda batch: babn.predict(model, batch, samples=3).sample_logits,
    }
    part = task.read("builtin", "dev")
    for name, way in ways.items():
        predictions = task.predictions(part, dev, outputs_of(dev, way))
        assert predictions.evaluation.prediction.sample_logits.shape[:2] == (
            (1 if name == "mean" else 3),
            len(part.examples),
        )
        predictions.save(tmp_path / name)
        measured = predictions.measure()
        assert set(task.scores) <= measured.keys()
        assert task.load_predictions(tmp_path / name).measure() == pytest.approx(
            measured, nan_ok=True
        )


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_predictions_are_those_of_the_model_row_by_row(task: GlueTask) -> None:
    model, _, dev = prepared(task, METHODS["softmax"])
    model.eval()
    part = task.read("builtin", "dev")
    predictions = task.predictions(
        part, dev, outputs_of(dev, lambda b: task.output(model(**b)).unsqueeze(0))
    )
    with torch.no_grad():
        alone = task.output(model(**dev.batch(torch.tensor([5]))))
    found = predictions.evaluation
    torch.testing.assert_close(found.prediction.sample_logits[0, 5], alone[0], atol=1e-5, rtol=1e-4)
    assert found.labels[5] == torch.tensor(part.examples[5].label)
    assert found.details == {"task": task.name, "part": "dev", "data": part.fingerprint}


def test_small_models_share_their_layers() -> None:
    model, train, _ = prepared(SST2, METHODS["belief"])
    assert model.config.num_hidden_layers == 2 and model.config.num_hidden_groups == 1
    assert "labels" in train.fixed


def test_built_in_texts_can_be_learnt() -> None:
    model, train, dev = prepared(SST2, METHODS["softmax"])
    losses(model.train(), train, 80, 2e-3)
    model.eval()
    way = lambda batch: SST2.output(model(**batch)).unsqueeze(0)  # noqa: E731
    measured = SST2.predictions(SST2.read("builtin", "dev"), dev, outputs_of(dev, way)).measure()
    assert measured["accuracy"] > 0.7
