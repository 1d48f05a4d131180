"""Parts of converted models, and models with converted parts."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import babn
from babn import errors
from models import CASES, outputs, surface

PARTS: dict[str, Callable[[Any], nn.Module]] = {
    "encoder": lambda model: model.bert,
    "layer that was chosen": lambda model: model.bert.encoder.layer[0],
    "layer that was not": lambda model: model.bert.encoder.layer[2],
    "layers in another model": lambda model: nn.Sequential(*model.bert.encoder.layer),
    "copy": lambda model: copy.deepcopy(model.bert),
}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_a_converted_model_is_refused(part: str) -> None:
    case = CASES["bert"]
    model = case.converted(layers="first:2")
    inner, before = PARTS[part](model), surface(model)

    for verb in (babn.convert, babn.inspect):
        with pytest.raises(errors.AlreadyConvertedError, match=r"is part of.*babn\.revert"):
            verb(inner)
    with pytest.raises(errors.NotConvertedError, match="part of a converted model"):
        babn.revert(inner)

    assert surface(model) == before
    expected = outputs(case.model(), case.batch())
    assert all(map(torch.equal, outputs(babn.revert(model), case.batch()), expected))


def test_a_part_of_a_reverted_model_converts() -> None:
    model = babn.revert(CASES["bert"].converted())

    assert babn.inspect(babn.convert(model.bert, babn.BeliefConfig.pairs(max_length=64))).converted


def test_a_whole_with_a_converted_part_is_refused_by_the_name_of_the_part() -> None:
    model = CASES["bert"].model()
    babn.convert(model.bert, babn.BeliefConfig.pairs(max_length=64))

    with pytest.raises(errors.AlreadyConvertedError, match=r"^bert in BertFor.*babn\.revert"):
        babn.convert(model)


class Two(nn.Module):
    """Two models that share their embeddings, which are no attention."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (CASES["bert"].model() for _ in range(2))
        self.second.bert.embeddings = self.first.bert.embeddings

    def forward(self, **batch: Any) -> Any:
        return self.first(**batch).logits + self.second(**batch).logits


def test_a_wrapper_may_hold_several_converted_models() -> None:
    model, batch = Two().eval(), CASES["bert"].batch()
    before = outputs(model, batch)
    for part in (model.first, model.second):
        babn.convert(part, babn.BeliefConfig.pairs(max_length=64, sigma=0.0))

    torch.testing.assert_close(outputs(model, batch), before, rtol=1e-4, atol=1e-5)
    assert len(babn.predict(model, batch, samples=2).sample_logits) == 2
    assert all(map(torch.equal, outputs(babn.revert(model.eval()), batch), before))
