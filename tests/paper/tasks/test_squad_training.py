"""The built-in questions from reading to measuring, with a small model."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from squad_cases import builtin, words
from torch import Tensor, nn

import babn
from babn.errors import BabnError, ConfigError
from babn_paper.pretrained import small_sizes
from babn_paper.tasks.catalogue import find_task
from babn_paper.tasks.encoded import Encoded

pytestmark = pytest.mark.thorough

LENGTH = 80


def train(model: nn.Module, encoded: Encoded, steps: int) -> list[float]:
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for step in range(steps):
        rows = torch.arange(16 * step, 16 * step + 16) % len(encoded)
        loss = model(**encoded.batch(rows)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def ask_all(
    task: Any, model: nn.Module, encoded: Encoded, samples: int
) -> Iterator[tuple[Tensor, Tensor]]:
    for rows in torch.arange(len(encoded)).flip(0).split(12):
        batch = encoded.batch(rows)
        if samples > 1:
            found = babn.predict(model, batch, samples=samples, output=task.output)
            yield rows, found.sample_logits
        else:
            with torch.no_grad():
                yield rows, task.output(model.eval()(**batch))[None]


@pytest.mark.parametrize("version", ["1.1", "2.0"])
@pytest.mark.parametrize(
    "config",
    [babn.SoftmaxConfig(), babn.BeliefConfig.pairs(max_length=LENGTH)],
    ids=["softmax", "belief"],
)
def test_builtin_end_to_end(
    tmp_path: Path, version: str, config: babn.SoftmaxConfig | babn.BeliefConfig
) -> None:
    torch.manual_seed(0)
    task, tokenizer = find_task(f"squad{version}"), words()
    training, test = builtin("train", version), builtin("dev", version)
    model = babn.convert(task.make_model(small_sizes(len(tokenizer), LENGTH)), config)
    losses = train(model, task.encode(training, tokenizer, LENGTH, True), 9)
    assert sum(losses[-3:]) < sum(losses[:3])
    encoded = task.encode(test, tokenizer, LENGTH, False)
    for samples in (1, 3) if isinstance(config, babn.BeliefConfig) else (1,):
        answers = task.predictions(test, encoded, ask_all(task, model, encoded, samples))
        measures = answers.measure()
        assert set(task.scores) <= set(measures)
        assert all(0 <= measures[name] <= 1 for name in ("exact", "F1", "ECE-10", "AURC"))
        assert math.isfinite(measures["NLL"]) and measures["gold in window"] == 1
        assert ("agreement" in measures) == (samples > 1)
        answers.save(tmp_path)
        assert repr(task.load_predictions(tmp_path).measure()) == repr(measures)


def test_a_model_that_knows_the_answers_scores_them() -> None:
    task, test = find_task("squad1.1"), builtin("dev")
    tokenizer = words()
    known = task.encode(test, tokenizer, LENGTH, True)
    encoded = task.encode(test, tokenizer, LENGTH, False)
    logits = torch.zeros(1, len(known), LENGTH, 2)
    for end, name in enumerate(("start_positions", "end_positions")):
        logits[0, torch.arange(len(known)), known.fixed[name], end] = 20.0
    found = task.predictions(test, encoded, iter([(torch.arange(len(known)), logits)])).measure()
    assert (found["exact"], found["F1"]) == (1, 1)
    assert found["NLL"] < 1e-3 and found["ECE-10"] < 1e-3


def test_models_of_folders(tmp_path: Path) -> None:
    task = find_task("squad1.1")
    task.make_model(small_sizes(50, 64)).save_pretrained(tmp_path)
    model = task.load_model(str(tmp_path), hidden_dropout_prob=0.25)
    assert model.config.hidden_dropout_prob == 0.25
    ids = torch.ones(2, 8, dtype=torch.long)
    assert task.output(model(input_ids=ids)).shape == (2, 8, 2)
    with pytest.raises(ConfigError, match=r"hiden_dropout=0\.1 is not a setting"):
        task.load_model(str(tmp_path), hiden_dropout=0.1)
    with pytest.raises(BabnError, match="cannot be loaded"):
        task.load_model(str(tmp_path / "nothing"))
