"""Conversion without noise changes nothing that a model computes."""

import pytest
import torch
from torch import Tensor

import babn
from models import CASES, Case, Multihead, cases, gap, outputs, vector_batch, without_dropout


@pytest.mark.parametrize("sigma", [0.0, 1e-6])
@pytest.mark.parametrize("case", cases())
def test_the_same_object_comes_back_and_its_outputs_stay(case: Case, sigma: float) -> None:
    batch, original, model = case.batch(), case.model(), case.model()
    config = babn.BeliefConfig.pairs(max_length=64, sigma=sigma)
    converted = babn.convert(model, config, case.example)

    assert converted is model
    assert type(converted) is type(original)
    assert gap(outputs(original, batch), outputs(converted, batch)) < 1e-5
    with torch.no_grad():
        assert gap(outputs(original, batch), outputs(converted, batch)) < 1e-5


@pytest.mark.thorough
@pytest.mark.parametrize("case", cases())
def test_training_without_noise_or_dropout_equals_evaluation(case: Case) -> None:
    batch = case.batch()
    converted = without_dropout(case.converted(rho=1e9, sigma=0.0)).train()

    assert gap(outputs(case.model(), batch), outputs(converted, batch)) < 1e-4


@pytest.mark.parametrize("case", cases("bert", "llama", "bart", "mpnet"))
def test_attention_weights_are_given_when_asked_for(case: Case) -> None:
    batch = case.batch() | {"output_attentions": True}
    original = case.model()
    original.set_attn_implementation("eager")
    converted = case.converted(sigma=0.0)

    assert gap(outputs(original, batch), outputs(converted, batch)) < 1e-5


@pytest.mark.thorough
@pytest.mark.parametrize("config", [babn.SoftmaxConfig(), babn.BamConfig(), babn.McDropoutConfig()])
@pytest.mark.parametrize("case", cases("bert", "t5", "multihead", "handmade"))
def test_the_mean_of_every_method_is_softmax(case: Case, config: babn.MethodConfig) -> None:
    batch = case.batch()
    converted = babn.convert(case.model(), config, case.example)

    assert gap(outputs(case.model(), batch), outputs(converted, batch)) < 1e-5


def test_a_model_in_double_precision_stays_in_double_precision() -> None:
    case = CASES["bert"]
    batch, original = case.batch(), case.model().double()
    converted = babn.convert(
        case.model().double(), babn.BeliefConfig.pairs(max_length=64, sigma=0.0)
    )

    assert gap(outputs(original, batch), outputs(converted, batch)) < 1e-12


class Noisy(Multihead):
    """Draws random numbers in evaluation too, as masked autoencoders do."""

    def forward(self, x: Tensor, padding: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(x + torch.randn_like(x), padding)


def test_a_model_that_is_random_itself_can_be_converted() -> None:
    batch = vector_batch()
    model = Noisy().eval()
    torch.manual_seed(0)
    before = outputs(model, batch)

    babn.convert(model, babn.BeliefConfig.pairs(max_length=16, sigma=0.0), batch)

    torch.manual_seed(0)
    assert gap(before, outputs(model, batch)) < 1e-5
