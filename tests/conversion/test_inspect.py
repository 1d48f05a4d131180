"""`inspect` foretells a conversion and changes nothing."""

import pytest
import torch

import babn
from models import CASES, Case, cases, surface


@pytest.mark.parametrize("case", cases())
def test_nothing_changes(case: Case) -> None:
    model = case.model()
    next(model.children()).train()
    before, config = surface(model), getattr(model, "config", None)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random_state = torch.get_rng_state()

    babn.inspect(model, case.example)

    assert surface(model) == before
    assert getattr(model, "config", None) is config
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random_state)


@pytest.mark.parametrize(
    "case", cases("albert", "bert", "deberta", "clip", "gemma2", "bart", kinds=("torch",))
)
def test_the_number_of_new_parameters_is_foretold(case: Case) -> None:
    model = case.model()
    before = sum(p.numel() for p in model.parameters())
    config = babn.BeliefConfig.pairs(max_length=32)

    inspection = babn.inspect(model, case.example, config)
    babn.convert(model, config, case.example)

    after = sum(p.numel() for p in model.parameters())
    assert inspection.parameters_added == after - before


@pytest.mark.thorough
@pytest.mark.parametrize(
    "config",
    [
        babn.BeliefConfig.pairs(sigma=0.0, max_length=16),
        babn.BeliefConfig.pairs(rho=0.0, sigma=0.0),
        babn.BeliefConfig.pairs(upward="heads"),
        babn.BamConfig(),
        babn.BamConfig(prior="constant"),
        babn.SoftmaxConfig(),
        babn.McDropoutConfig(),
    ],
    ids=["no-scale", "no-upward", "heads", "bam", "bam-constant", "softmax", "mc-dropout"],
)
def test_the_number_of_new_parameters_is_predicted(
    config: babn.MethodConfig,
) -> None:
    model = CASES["bert"].model()
    before = sum(p.numel() for p in model.parameters())

    foretold = babn.inspect(model, config=config).parameters_added
    babn.convert(model, config)

    assert foretold == sum(p.numel() for p in model.parameters()) - before


def test_a_converted_model_says_so() -> None:
    model = CASES["bert"].converted(max_length=16)
    added = sum(p.numel() for p in model.babn.parameters())

    inspection = babn.inspect(model)

    assert inspection.converted
    assert inspection.parameters_added == added
    assert "is converted" in str(inspection)


def test_the_table_names_chains_and_skipped_modules() -> None:
    case = CASES["bart"]
    model = case.model()

    whole = babn.inspect(model)
    encoder = babn.inspect(model.model.encoder, {"input_ids": case.batch()["input_ids"]})

    assert all(chain.name in str(whole) for chain in whole.chains)
    assert not whole.skipped
    assert len(encoder.chains) == 1


def test_attention_that_the_dry_run_does_not_reach_is_reported() -> None:
    model = CASES["multihead"].model()
    model.unused = torch.nn.MultiheadAttention(16, 4)

    inspection = babn.inspect(model, CASES["multihead"].batch())

    assert list(inspection.skipped) == ["unused"]
    assert "unused: MultiheadAttention made no attention call" in str(inspection)
