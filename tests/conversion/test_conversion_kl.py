"""The KL: part of the training loss, attached to the output, with gradients for all parameters."""

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn

import babn
from models import CASES, Case, Multihead, cases, floats

WITH_LOSS = cases(kinds=("encoder", "decoder", "seq2seq", "vision"))


@pytest.mark.thorough
@pytest.mark.parametrize("case", cases())
def test_every_belief_parameter_gets_a_finite_gradient(case: Case) -> None:
    model = case.converted(sigma=0.1, kl_weight=1.0).train()

    case.loss(model).backward()

    gradients = {name: p.grad for name, p in model.babn.named_parameters()}
    assert [name for name, grad in gradients.items() if grad is None] == []
    assert [name for name, grad in gradients.items() if not grad.isfinite().all()] == []
    # The prior is normalised over keys, so that its last bias cancels.
    dead = [name for name, grad in gradients.items() if not grad.any()]
    assert [name for name in dead if not name.endswith("outer.bias")] == []


@pytest.mark.parametrize("case", WITH_LOSS)
def test_the_training_loss_is_likelihood_plus_weighted_kl(case: Case) -> None:
    model, batch = case.converted().train(), case.with_answers()
    found = {}
    for weight in (0.0, 1.0):
        babn.set_kl_weight(model, weight)
        torch.manual_seed(0)
        found[weight] = model(**batch)

    kl = found[1.0].belief_kl
    torch.testing.assert_close(found[0.0].belief_kl, kl)
    torch.testing.assert_close(found[1.0].loss, found[0.0].loss + kl, rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("case", WITH_LOSS)
def test_the_kl_is_an_attribute_of_the_output_and_no_entry(case: Case) -> None:
    model = case.converted().train()

    output = model(**case.with_answers())

    assert output.belief_kl.shape == ()
    assert not [key for key in output.keys() if "kl" in key]  # noqa: SIM118
    assert not any(output.belief_kl is value for value in output.to_tuple())
    layers = babn.kl_per_layer(output)
    torch.testing.assert_close(sum(layers.values()), output.belief_kl)
    assert len(layers) == babn.inspect(model).calls


@pytest.mark.parametrize("case", cases(kinds=("torch",)))
def test_a_plain_model_keeps_the_kl_of_its_last_pass(case: Case) -> None:
    model = case.converted(kl_weight=0.5).train()

    model(**case.batch())

    layers = babn.kl_per_layer(model)
    assert len(layers) == babn.inspect(model).calls
    torch.testing.assert_close(sum(layers.values()), babn.belief_kl(model))
    torch.testing.assert_close(babn.weighted_kl(model), 0.5 * babn.belief_kl(model))


@pytest.mark.parametrize("case", cases("bert", "bart", "multihead"))
def test_evaluation_adds_nothing_to_the_loss(case: Case) -> None:
    model = case.converted(sigma=0.0, kl_weight=1.0)
    batch = case.with_answers()

    before, after = floats(case.model()(**batch)), floats(model(**batch))

    torch.testing.assert_close(after[0], before[0], rtol=1e-4, atol=1e-5)
    assert babn.belief_kl(model) > 0


def test_the_kl_is_left_out_without_gradients_unless_asked_for() -> None:
    model, batch = CASES["bert"].converted(), CASES["bert"].batch()
    with torch.no_grad():
        assert not hasattr(model(**batch), "belief_kl")
        with babn.recording_kl(model):
            assert model(**batch).belief_kl > 0


def test_the_sum_over_pairs_is_the_mean_times_their_number() -> None:
    case = CASES["vit"]
    mean, total = (
        case.converted(kl_reduction=kind)(**case.batch()).belief_kl for kind in ("mean", "sum")
    )
    pairs = 4 * 5 * 5  # heads, queries, keys

    torch.testing.assert_close(total, mean * pairs)


def test_an_encoder_by_itself_has_its_own_kl() -> None:
    case = CASES["bart"]
    model, batch = case.converted(), case.batch()

    encoded = model.get_encoder()(batch["input_ids"], batch["attention_mask"])
    alone = babn.kl_per_layer(encoded)
    whole = babn.kl_per_layer(model(**batch))
    given = model(**batch, encoder_outputs=encoded)

    assert list(alone) == [name for name in whole if "encoder.layers" in name]
    assert list(babn.kl_per_layer(given)) == [name for name in whole if name not in alone]
    torch.testing.assert_close(alone, {name: whole[name] for name in alone})


def test_an_output_without_names_has_the_kl_in_its_loss() -> None:
    case = CASES["bert"]
    model, batch = case.converted(kl_weight=1.0).train(), case.with_answers()
    torch.manual_seed(0)
    named = model(**batch)
    torch.manual_seed(0)
    unnamed = model(**batch, return_dict=False)

    assert type(unnamed) is tuple
    torch.testing.assert_close(unnamed[0], named.loss)


@dataclass
class Answer:
    loss: Tensor
    hidden: Tensor


@dataclass(frozen=True)
class FrozenAnswer:
    loss: Tensor
    hidden: Tensor = field(repr=False)


class Answers(Multihead):
    """A plain model that computes its loss itself, and gives it in some container."""

    def __init__(self, container: type) -> None:
        super().__init__()
        self.container = container

    def forward(self, x: Tensor, padding: Tensor):
        hidden, _ = super().forward(x, padding)
        return self.container(loss=hidden.square().mean(), hidden=hidden)


@pytest.mark.parametrize("container", [dict, Answer])
def test_a_loss_of_ones_own_gets_the_kl(container: type) -> None:
    batch = CASES["multihead"].batch()
    model: nn.Module = Answers(container)
    babn.convert(model, babn.BeliefConfig.pairs(max_length=16, kl_weight=0.0), batch).train()
    torch.manual_seed(0)
    plain = floats(vars(model(**batch)) if container is Answer else model(**batch))[0]
    babn.set_kl_weight(model, 1.0)
    torch.manual_seed(0)
    output = model(**batch)

    loss = output.loss if container is Answer else output["loss"]
    torch.testing.assert_close(loss, plain + babn.belief_kl(model))


def test_a_loss_that_cannot_be_changed_is_not_passed_over_in_silence() -> None:
    batch = CASES["multihead"].batch()
    model = babn.convert(Answers(FrozenAnswer), babn.BeliefConfig.pairs(max_length=16), batch)

    with pytest.raises((babn.errors.BabnError, AttributeError), match="loss"):
        model.train()(**batch)
