"""The KL in the loss: its reduction, its weight, and where it can be read."""

import copy
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from small_training import BELIEF, batch_of, belief_parameters, bert, texts
from torch import Tensor, nn

import babn
from babn.conversion.state import belief_states
from babn.elbo import reduce_kl, reduce_kl_rows
from babn.errors import ConfigError, NoKLError, NotConvertedError


class TorchClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((x + self.attention(x, x, x)[0]).mean(1))


def converted_bert(config: babn.MethodConfig = BELIEF) -> nn.Module:
    return babn.convert(bert(), config).train()


def converted_torch() -> tuple[nn.Module, Tensor]:
    x = torch.randn(4, 5, 16)
    return babn.convert(TorchClassifier(), BELIEF, example_inputs=x).train(), x


@pytest.mark.parametrize(
    "config",
    [BELIEF, pytest.param(babn.BamConfig(), marks=pytest.mark.thorough)],
    ids=lambda c: c.name,
)
def test_plain_loop_lowers_the_loss(config: babn.MethodConfig) -> None:
    model = converted_bert(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    batch, losses, kl_values = batch_of(texts(16)), [], []
    for _ in range(40):
        output = model(**batch)
        output.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(output.loss.item())
        kl_values.append(output.belief_kl.item())
    assert torch.tensor(kl_values).isfinite().all()
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("weight", [0.0, 0.3])
def test_training_loss_is_likelihood_plus_weighted_kl(weight: float) -> None:
    model, batch = converted_bert(), batch_of(texts())
    babn.set_kl_weight(model, weight)
    output = model(**batch)
    likelihood = F.cross_entropy(output.logits, batch["labels"])
    assert output.belief_kl > 0
    torch.testing.assert_close(output.loss, likelihood + weight * output.belief_kl)


def test_tuple_output_carries_the_kl_in_its_loss() -> None:
    model, batch = converted_bert(), batch_of(texts())
    loss, logits = model(**batch, return_dict=False)
    likelihood = F.cross_entropy(logits, batch["labels"])
    torch.testing.assert_close(loss, likelihood + babn.weighted_kl(model))


def test_evaluation_loss_is_the_likelihood_alone() -> None:
    model, batch = converted_bert().eval(), batch_of(texts())
    output = model(**batch)
    torch.testing.assert_close(output.loss, F.cross_entropy(output.logits, batch["labels"]))


@pytest.mark.parametrize("weight", [-0.1, float("nan"), float("inf"), -float("inf")])
def test_impossible_weights_are_refused(weight: float) -> None:
    model = converted_bert()
    with pytest.raises(ConfigError, match="weight="):
        babn.set_kl_weight(model, weight)
    assert babn.get_kl_weight(model) == pytest.approx(BELIEF.kl_weight)


def test_weight_of_a_model_that_is_not_converted_is_refused() -> None:
    with pytest.raises(NotConvertedError, match="not converted"):
        babn.set_kl_weight(bert(), 0.1)


def test_kl_per_layer_is_the_same_on_output_and_model() -> None:
    model = converted_bert()
    output = model(**batch_of(texts()))
    layers = babn.kl_per_layer(output)
    assert list(layers) == [f"bert.encoder.layer.*.attention.self/{step}" for step in range(2)]
    assert layers == babn.kl_per_layer(model)
    torch.testing.assert_close(sum(layers.values()), output.belief_kl)


@pytest.mark.parametrize("output", [SimpleNamespace(logits=1), (1, 2), None])
def test_an_output_without_kl_says_so(output: Any) -> None:
    with pytest.raises(NoKLError, match="carries no KL"):
        babn.kl_per_layer(output)


def test_output_of_an_evaluation_without_gradients_has_no_kl() -> None:
    model, batch = converted_bert().eval(), batch_of(texts())
    with torch.no_grad():
        output = model(**batch)
    for source in (output, model):
        with pytest.raises(NoKLError, match="recording_kl"):
            babn.kl_per_layer(source)
    with torch.no_grad(), babn.recording_kl(model):
        output = model(**batch)
    assert len(babn.kl_per_layer(model)) == len(babn.kl_per_layer(output)) == 2


@pytest.mark.parametrize("term", [babn.belief_kl, babn.weighted_kl])
def test_kl_of_a_torch_model_reaches_every_belief_parameter(term: Any) -> None:
    model, x = converted_torch()
    model(x)
    term(model).backward()
    gradients = [p.grad for p in model.babn.parameters()]
    assert all(g is not None and g.isfinite().all() for g in gradients)
    assert model.attention.in_proj_weight.grad.abs().sum() > 0


def test_weighted_kl_is_weight_times_kl() -> None:
    model, x = converted_torch()
    babn.set_kl_weight(model, 0.25)
    model(x)
    torch.testing.assert_close(babn.weighted_kl(model), 0.25 * babn.belief_kl(model))


def test_methods_without_a_prior_have_no_kl() -> None:
    model, batch = converted_bert(babn.SoftmaxConfig()), batch_of(texts())
    output = model(**batch)
    assert babn.belief_kl(model) == 0
    torch.testing.assert_close(output.loss, F.cross_entropy(output.logits, batch["labels"]))


def test_no_graph_is_kept_after_prediction() -> None:
    model, batch = converted_bert(), batch_of(texts())
    model(**batch)
    babn.predict(model, batch, samples=2)
    assert belief_states(model)[0].last_kl is None


def test_no_graph_is_kept_after_evaluation() -> None:
    model, batch = converted_bert(), batch_of(texts())
    model(**batch)
    with torch.no_grad():
        model.eval()(**batch)
    assert belief_states(model)[0].last_kl is None


def test_a_copy_can_be_made_right_after_a_training_pass() -> None:
    model, batch = converted_bert(), batch_of(texts())
    model(**batch)
    twin = copy.deepcopy(model)
    babn.set_kl_weight(twin, 0.7)
    assert belief_states(twin)[0].last_kl is None
    assert babn.get_kl_weight(model) == pytest.approx(0.1)
    assert torch.equal(model.eval()(**batch).logits, twin.eval()(**batch).logits)


def test_a_copy_trains_apart_from_its_original() -> None:
    model, batch = converted_bert(), batch_of(texts())
    before = belief_parameters(model)
    twin = copy.deepcopy(model)
    twin(**batch).loss.backward()
    torch.optim.SGD(twin.parameters(), lr=0.1).step()
    assert all(torch.equal(p, before[name]) for name, p in belief_parameters(model).items())
    assert not all(torch.equal(p, before[name]) for name, p in belief_parameters(twin).items())


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_reductions_are_means_and_sums_of_what_counts(
    reduction: Literal["mean", "sum"], masked: bool, padded: bool
) -> None:
    kl = torch.rand(3, 2, 4, 5, dtype=torch.float64)
    keys = torch.rand(3, 1, 1, 5) < 0.7 if masked else None
    queries = torch.rand(3, 1, 4) < 0.7 if padded else None
    counts = torch.ones(3, 2, 4, 5, dtype=torch.bool)
    counts &= True if keys is None else keys
    counts &= True if queries is None else queries.unsqueeze(-1)
    chosen = [float(kl[place]) for place in map(tuple, counts.nonzero().tolist())]
    expected = sum(chosen) / (len(chosen) if reduction == "mean" else 3)
    assert float(reduce_kl(kl, counts, reduction)) == pytest.approx(expected)
    rows = (kl if keys is None else kl * keys).sum(-1)
    found = reduce_kl_rows(rows, queries, keys, (3, 2, 4, 5), reduction)
    assert float(found) == pytest.approx(expected)


def test_an_empty_batch_has_no_kl() -> None:
    empty = torch.zeros(0, 2, 4, 5)
    assert reduce_kl(empty, None, "mean") == 0 and reduce_kl(empty, None, "sum") == 0
