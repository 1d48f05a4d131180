"""Activation checkpointing gives the gradients of training without it, or refuses."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as torch_checkpoint

import babn
from models import CASES, Case, cases, checkpoint_activations, gap, stop_checkpointing, vector_batch

CHECKPOINTED = cases("bert", "gpt2", "llama", "bart", "deberta")


def gradient(model: nn.Module, case: Case, passes: int = 1) -> Tensor:
    """The gradient of some training passes as one vector."""
    model.train().zero_grad()
    torch.manual_seed(0)
    sum(case.loss(model) for _ in range(passes)).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.thorough
@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("case", CHECKPOINTED)
def test_gradients_are_those_of_training_without_it(case: Case, passes: int) -> None:
    model = case.converted(sigma=0.1, kl_weight=1.0)
    expected = gradient(model, case, passes)

    checkpoint_activations(model)

    assert gap([expected], [gradient(model, case, passes)]) < 1e-5


def test_checkpointing_may_be_on_before_conversion() -> None:
    case = CASES["bert"]
    expected = gradient(case.converted(), case)
    model = case.model()
    checkpoint_activations(model)
    babn.convert(model, babn.BeliefConfig.pairs(max_length=64))
    model.babn.load_state_dict(case.converted().babn.state_dict())

    assert gap([expected], [gradient(model, case)]) < 1e-5


def test_checkpointing_may_be_switched_off_again() -> None:
    case = CASES["bert"]
    model = case.converted()
    expected = gradient(model, case)
    checkpoint_activations(model)
    gradient(model, case)

    stop_checkpointing(model)

    assert gap([expected], [gradient(model, case)]) < 1e-5


@pytest.mark.parametrize("case", cases("bert", "gpt2"))
def test_reentrant_checkpointing_is_refused(case: Case) -> None:
    model = case.converted()
    checkpoint_activations(model, use_reentrant=True)

    with pytest.raises(babn.errors.CheckpointingError, match="use_reentrant=False"):
        gradient(model, case)


class Checkpoints(nn.Module):
    """Calls one attention module three times, each under checkpointing of some kind."""

    def __init__(self, checkpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.checkpoint = checkpoint
        self.options = options

    def layer(self, x: Tensor) -> Tensor:
        return x + self.attention(x, x, x)[0]

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.checkpoint(self.layer, x, **self.options) if self.training else self.layer(x)
        return x


def shared(checkpoint: Callable[..., Any], **options: Any) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    x = vector_batch()["x"].requires_grad_()
    model = Checkpoints(checkpoint, **options)
    return babn.convert(
        model, babn.BeliefConfig.pairs(max_length=16, sigma=0.1), x.detach()
    ).train(), x


def handmade_gradient(model: nn.Module, x: Tensor) -> Tensor:
    torch.manual_seed(1)
    outputs = [model(x).square().mean() + babn.belief_kl(model) for _ in range(2)]
    sum(outputs).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def test_handwritten_models_use_the_checkpoint_of_babn() -> None:
    plain = handmade_gradient(*shared(lambda function, x: function(x)))

    assert gap([plain], [handmade_gradient(*shared(babn.checkpoint))]) < 1e-5


def test_the_checkpoint_of_babn_refuses_to_be_reentrant() -> None:
    with pytest.raises(babn.errors.CheckpointingError, match="use_reentrant=False"):
        handmade_gradient(*shared(babn.checkpoint, use_reentrant=True))


def test_reentrant_checkpointing_of_torch_is_refused() -> None:
    with pytest.raises(babn.errors.CheckpointingError, match="use_reentrant=False"):
        handmade_gradient(*shared(torch_checkpoint, use_reentrant=True))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_so_it_is_where_no_backward_pass_would_notice() -> None:
    model, x = shared(torch_checkpoint, use_reentrant=True)
    with pytest.raises(babn.errors.CheckpointingError, match="use_reentrant=False"):
        model(x.detach())


def test_the_checkpoint_of_torch_asks_for_that_of_babn() -> None:
    with pytest.raises(babn.errors.BabnError, match=r"babn\.checkpoint"):
        handmade_gradient(*shared(torch_checkpoint, use_reentrant=False))


def test_seeded_samples_cannot_be_recomputed() -> None:
    case = CASES["bert"]
    model = case.converted()
    checkpoint_activations(model)
    with (
        babn.sampling(model, seed=0),
        pytest.raises(babn.errors.CheckpointingError, match="Seeded sampling"),
    ):
        gradient(model, case)


def test_the_checkpoint_of_babn_works_outside_a_converted_model() -> None:
    x = torch.ones(3, requires_grad=True)
    babn.checkpoint(torch.square, x).sum().backward()

    assert x.grad.tolist() == [2, 2, 2]
