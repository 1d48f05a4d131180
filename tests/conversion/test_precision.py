"""Half precision: belief is computed in float32 whatever the model computes in."""

import copy

import pytest
import torch

import babn
from models import CASES, Batch, Case, cases, gap, outputs, without_dropout

# What torch says on processors that have no bfloat16 of their own.
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore:mkldnn_matmul failed"),
]

FAMILIES = cases("bert", "llama", "t5", "torch-encoder", "handmade")


def half(batch: Batch) -> Batch:
    return {k: v.bfloat16() if v.is_floating_point() else v for k, v in batch.items()}


@pytest.mark.parametrize("case", FAMILIES)
def test_a_model_in_bfloat16_stays_near_float32(case: Case) -> None:
    model, batch = case.converted(sigma=0.1), case.batch()
    small = copy.deepcopy(model).bfloat16()

    found = outputs(small, half(batch))

    assert all(x.dtype == torch.bfloat16 for x in found)
    assert gap(outputs(model, batch), [x.float() for x in found]) < 0.1
    torch.testing.assert_close(
        babn.belief_kl(small).float(), babn.belief_kl(model), rtol=0.02, atol=0
    )


@pytest.mark.parametrize("case", FAMILIES)
def test_gradients_in_bfloat16_are_finite(case: Case) -> None:
    model = case.converted(sigma=0.1).bfloat16().train()
    answers = case.answers(case.batch()) if case.answers else {}

    output = model(**half(case.batch()), **answers)
    loss = output.loss if answers else output.square().mean() + babn.weighted_kl(model)
    loss.backward()

    assert all(p.grad.isfinite().all() for p in model.babn.parameters())


@pytest.mark.parametrize("case", FAMILIES)
def test_autocast_stays_near_float32(case: Case) -> None:
    model = without_dropout(case.converted(rho=1e9, sigma=0.1)).train()
    expected, kl = outputs(model, case.batch()), babn.belief_kl(model)

    with torch.autocast("cpu", torch.bfloat16):
        found, loss = outputs(model, case.batch()), case.loss(model)
    loss.backward()

    assert gap(expected, [x.float() for x in found]) < 0.1
    torch.testing.assert_close(babn.belief_kl(model), kl, rtol=0.02, atol=0)
    assert all(p.grad.isfinite().all() for p in model.babn.parameters())


def test_autocast_leaves_the_belief_in_float32() -> None:
    case = CASES["bert"]
    model = case.converted(sigma=0.0)
    with torch.autocast("cpu", torch.bfloat16):
        maps = babn.attention_maps(model, case.batch())

    assert {x.mean.dtype for x in maps} == {torch.float32}
    for x in maps:
        torch.testing.assert_close(x.mean.sum(-1), torch.ones(2, 4, 9))


def test_conversion_of_a_model_in_bfloat16_keeps_belief_in_float32() -> None:
    model = babn.convert(CASES["bert"].model().bfloat16(), babn.BeliefConfig.pairs(max_length=16))

    assert {p.dtype for p in model.babn.parameters()} == {torch.float32}
    assert outputs(model, CASES["bert"].batch())[0].dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weight_and_temperature_keep_their_precision(dtype: torch.dtype) -> None:
    model = CASES["bert"].converted(kl_weight=0.0123456789)
    model.babn.temperature.fill_(1.23456789)
    before = model.babn.kl_weight.item(), model.babn.temperature.item()

    model.to(dtype)
    assert (model.babn.kl_weight.item(), model.babn.temperature.item()) == before
    assert {p.dtype for p in model.babn.parameters()} == {dtype}
    # Otherwise they go where the model goes.
    assert model.double().babn.kl_weight.item() == before[0]
    assert model.to("meta").babn.kl_weight.is_meta
    assert not model.to_empty(device="cpu").babn.kl_weight.is_meta
