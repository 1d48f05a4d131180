"""`revert` leaves nothing of the conversion behind."""

import pytest
import torch

import babn
from models import CASES, Case, cases, checkpoint_activations, outputs, surface, without_dropout


@pytest.mark.parametrize("case", cases())
def test_outputs_are_those_of_before_and_no_trace_is_left(case: Case) -> None:
    model, batch = case.model(), case.batch()
    model(**case.with_answers())  # some note the kind of labels in their configuration
    outputs_before = outputs(model, batch)
    before, names = surface(model), list(model.state_dict())

    babn.convert(model, babn.BeliefConfig.pairs(max_length=64), case.example)
    assert surface(model) != before
    case.loss(model.train()).backward()

    assert babn.revert(model.eval()) is model
    assert surface(model) == before  # attributes, hooks, settings
    assert list(model.state_dict()) == names
    assert all(map(torch.equal, outputs_before, outputs(model, batch)))


@pytest.mark.parametrize("case", cases("bert", "torch-encoder", "handmade"))
def test_a_reverted_model_converts_again(case: Case) -> None:
    model = babn.revert(case.converted())

    babn.convert(model, babn.BeliefConfig.pairs(max_length=64), case.example)

    assert torch.isfinite(case.loss(model.train()))


def test_trained_base_weights_stay() -> None:
    case = CASES["bert"]
    model = case.converted().train()
    case.loss(model).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    trained = {name: p.clone() for name, p in model.named_parameters() if "babn" not in name}

    babn.revert(model)

    assert all(torch.equal(p, trained[name]) for name, p in model.named_parameters())


def test_checkpointing_functions_are_unwrapped() -> None:
    case = CASES["bert"]
    model = case.converted().train()
    checkpoint_activations(model)
    case.loss(model).backward()

    babn.revert(model)

    assert not [name for name, value in vars(model.bert.encoder).items() if "babn" in repr(value)]
    assert torch.isfinite(case.loss(model))


def test_a_model_whose_part_was_converted_reverts_as_a_whole() -> None:
    case = CASES["bert"]
    model, batch = case.model(), case.batch()
    before = outputs(model, batch)
    babn.convert(model.bert, babn.BeliefConfig.pairs(max_length=64))

    assert all(map(torch.equal, before, outputs(babn.revert(model), batch)))


def test_a_forward_that_another_tool_put_on_a_module_survives() -> None:
    case = CASES["multihead"]
    model = without_dropout(case.model())
    layer = model.layers[0]
    own = layer.forward
    layer.forward = lambda *args, **kwargs: own(*args, **kwargs)
    theirs = layer.forward

    babn.revert(babn.convert(model, babn.BeliefConfig.pairs(max_length=64), case.example))

    assert vars(layer)["forward"] is theirs
