"""`torch.compile` takes a converted model as one graph, and computes the same."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.utils import counters

import babn
from models import CASES, gap, outputs, without_dropout

pytestmark = pytest.mark.thorough

Unchecked = Callable[..., Any]
LATER = ("bert", "albert", "gpt2", "t5", "torch-encoder", "mpnet", "deberta", "handmade")
OVER = pytest.mark.parametrize("over", ["keys", "pairs"])
COMPILED = pytest.mark.parametrize(
    "name", ["sdpa", *(pytest.param(name, marks=pytest.mark.slow) for name in LATER)]
)


def compiled(model: nn.Module) -> Any:
    torch._dynamo.reset()
    counters.clear()
    return torch.compile(model, fullgraph=True, backend="aot_eager")


def gradient(model: nn.Module, loss: Tensor) -> Tensor:
    """The gradient of all parameters as one vector."""
    model.zero_grad()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def evaluation_gap(name: str, over: str) -> float:
    case = CASES[name]
    model = case.with_key_noise() if over == "keys" else case.converted(sigma=0.1)
    return gap(outputs(model, case.batch()), outputs(compiled(model), case.batch()))


def gradient_gap(name: str, over: str) -> float:
    case, settings = CASES[name], {"rho": 1e9, "kl_weight": 1.0}
    keys = over == "keys"
    model = case.with_key_noise(**settings) if keys else case.converted(sigma=0.0, **settings)
    without_dropout(model).train()
    expected = gradient(model, case.loss(model))
    return gap([expected], [gradient(model, case.loss(compiled(model)))])


def losses_by_weight(*settings: tuple[float, int]) -> tuple[list[float], list[int]]:
    """Losses by weight and seed, and how many graphs were compiled up to each."""
    case = CASES["sdpa"]
    model = case.converted(rho=1.0).train()
    faster, losses, graphs = compiled(model), [], []
    for weight, seed in settings:
        babn.set_kl_weight(model, weight)
        torch.manual_seed(seed)
        losses.append(case.loss(faster).item())
        graphs.append(counters["stats"]["unique_graphs"])
    return losses, graphs


def samples_by_seed(over: str, seeds: Sequence[int]) -> tuple[list[Tensor], list[int], Tensor]:
    """Sampled logits by seed, how many graphs were compiled up to each, and those of eager mode."""
    case = CASES["sdpa"]
    model = case.with_key_noise(rho=0.5) if over == "keys" else case.converted(rho=0.5)
    faster, batch, found, graphs = compiled(model), case.batch(), [], []
    for seed in seeds:
        found.append(babn.predict(faster, batch, 200, seed, memory=8.0).sample_logits)
        graphs.append(counters["stats"]["unique_graphs"])
    return found, graphs, babn.predict(model, batch, 200, 7, memory=8.0).sample_logits


def passes_with_a_seed(over: str) -> tuple[list[Tensor], list[set[Any]]]:
    """Outputs of two passes with one seed, and what the graphs call."""
    case, called = CASES["sdpa"], []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        called.append({node.target for node in graph.graph.nodes})
        return graph.forward

    torch._dynamo.reset()
    model = case.with_key_noise(rho=0.5) if over == "keys" else case.converted(rho=0.5)
    faster, batch = torch.compile(model, backend=backend), case.batch()
    with torch.no_grad(), babn.sampling(model, 3):
        return [faster(**batch) for _ in range(2)], called


class Unflattens(nn.Module):
    """Calls a method of tensors that is written in Python."""

    def forward(self, x: Tensor) -> Tensor:
        heads = x.unflatten(-1, (4, 4)).transpose(1, 2)
        return F.scaled_dot_product_attention(heads, heads, heads)


def unflattening_gap() -> float:
    x = torch.randn(2, 5, 16)
    model = babn.convert(Unflattens(), babn.BeliefConfig.pairs(max_length=16), x).eval()
    return gap([model(x)], [compiled(model)(x)])


@OVER
@COMPILED
def test_compiled_equals_eager(name: str, over: str, unchecked: Unchecked) -> None:
    assert unchecked(evaluation_gap, name, over) < 1e-5


@OVER
@COMPILED
def test_compiled_training_has_the_gradients_of_eager_training(
    name: str, over: str, unchecked: Unchecked
) -> None:
    # Shapes of keys end at 10,000, where samples still differ a little.
    assert unchecked(gradient_gap, name, over) < (1e-2 if over == "keys" else 1e-4)


def test_another_weight_of_the_kl_does_not_compile_again(unchecked: Unchecked) -> None:
    settings = (0.0, 0), (0.5, 0), (1.0, 0), (1.0, 1)

    (none, half, full, other), graphs = unchecked(losses_by_weight, *settings)

    assert graphs == graphs[:1] * 4
    assert full - half == pytest.approx(half - none, rel=1e-3)
    assert other != full  # another sample


@OVER
def test_seeds_determine_samples_and_do_not_compile_again(over: str, unchecked: Unchecked) -> None:
    (first, other, again), graphs, eager = unchecked(samples_by_seed, over, (0, 1, 0))

    assert graphs == graphs[:1] * 3
    assert torch.equal(first, again)
    spread = eager.std(0).clamp(min=1e-4)
    assert ((first - other).abs().mean(0) > spread / 2).all()
    for drawn in (first, other):
        assert ((drawn.mean(0) - eager.mean(0)).abs() < 0.5 * spread).all()
        assert (drawn.std(0) / spread - 1).abs().max() < 0.4


@OVER
def test_graphs_change_no_tensor_that_they_read(over: str, unchecked: Unchecked) -> None:
    """CUDA graphs are not captured otherwise."""
    (first, second), called = unchecked(passes_with_a_seed, over)

    assert not torch.allclose(first, second, atol=1e-3)  # the pass is counted all the same
    (model,) = [calls for calls in called if torch.softmax in calls or F.linear in calls]
    assert not model & {operator.iadd, operator.setitem}


def test_a_module_may_call_methods_that_are_written_in_python(unchecked: Unchecked) -> None:
    assert unchecked(unflattening_gap) < 1e-5
