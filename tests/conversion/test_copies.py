"""A deep copy of a converted model is a converted model of its own."""

import copy

import pytest
import torch
from torch import Tensor, nn

import babn
from models import CASES, Case, cases, outputs

pytestmark = pytest.mark.thorough


def sample(model: nn.Module, case: Case) -> list[Tensor]:
    with torch.no_grad(), babn.sampling(model, seed=0):
        return outputs(model, case.batch())


def same(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(map(torch.equal, first, second))


@pytest.mark.parametrize("case", cases())
def test_a_copy_computes_the_same_with_parameters_of_its_own(case: Case) -> None:
    model = case.converted()
    case.loss(model.train())
    twin = copy.deepcopy(model.eval())
    before = sample(model, case)
    assert same(sample(twin, case), before)

    with torch.no_grad():
        for parameter in twin.babn.parameters():
            parameter.mul_(-2)

    assert not same(sample(twin, case), before)
    assert same(sample(model, case), before)


@pytest.mark.parametrize(
    "case", cases("albert", "deberta", "mistral", "t5", kinds=("torch", "vision"))
)
def test_reverting_one_of_the_two_leaves_the_other(case: Case) -> None:
    original, model = outputs(case.model(), case.batch()), case.converted(sigma=0.1)
    twin, third = copy.deepcopy(model), copy.deepcopy(model)
    before = sample(model, case)

    assert same(outputs(babn.revert(twin), case.batch()), original)
    assert same(sample(model, case), before)
    assert same(outputs(babn.revert(model), case.batch()), original)
    assert same(sample(third, case), before)


def test_a_copy_notes_its_own_kl() -> None:
    case = CASES["bert"]
    model = case.converted()
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.bert.embeddings.word_embeddings.weight.mul_(2)

    own, other = model(**case.batch()).belief_kl, twin(**case.batch()).belief_kl

    assert own != other
    assert babn.belief_kl(model) == own
    assert babn.belief_kl(twin) == other


def test_a_copy_follows_its_own_overrides() -> None:
    case = CASES["bert"]
    model = case.converted()
    twin = copy.deepcopy(model)
    with babn.sampling(twin, seed=0):
        assert same(outputs(model, case.batch()), outputs(case.converted(), case.batch()))


def test_models_that_shared_a_configuration_stay_apart() -> None:
    case = CASES["bert"]
    first = case.model()
    second = type(first)(first.config).eval()
    before = outputs(second, case.batch())

    babn.convert(first, babn.BeliefConfig.pairs(max_length=64))

    assert not hasattr(second.config, "babn")
    assert same(outputs(second, case.batch()), before)


def test_weights_alone_move_between_converted_models() -> None:
    case = CASES["torch-encoder"]
    model, other = case.converted(), case.converted(rho=3.0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)

    other.load_state_dict(model.state_dict())

    assert all(map(torch.equal, model.state_dict().values(), other.state_dict().values()))
