"""Maps of attention weights and of their uncertainty."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from babn.attention.method import Posterior
from babn.conversion.example_inputs import as_call
from babn.conversion.override import overriding
from babn.prediction.batches import are_texts, check_tokenizer, device_of, encode
from babn.prediction.modes import evaluating


@dataclass(frozen=True)
class AttentionMap:
    """The posterior of one attention call.

    Attributes:
        name: The call's chain and step.
        mean: Posterior mean weights, normalised over keys.
        relative_std: Standard deviation divided by mean of the normalised weights; zero at masked
            keys.
        variable_relative_std: The same of the unnormalised variables, which the paper's figures
            show.
    """

    name: str
    mean: Float[Tensor, "batch head query key"]
    relative_std: Float[Tensor, "batch head query key"]
    variable_relative_std: Float[Tensor, "batch head query key"] | None = None


def attention_maps(model: nn.Module, batch: Any, *, tokenizer: Any = None) -> list[AttentionMap]:
    """Returns the posterior mean and relative std of every attention call, in call order.

    Args:
        model: A converted model; its training mode is restored afterwards.
        batch: A dictionary of keyword arguments, a tuple or a tensor; or a list of texts.
        tokenizer: The model's tokenizer, for texts.
    """
    if are_texts(batch):
        check_tokenizer(tokenizer)
        batch = encode(tokenizer, batch, device_of(model))
    args, kwargs = as_call(batch)
    posteriors: list[tuple[str, Posterior]] = []
    with (
        torch.no_grad(),
        evaluating(model),
        overriding(model, mode="mean", posteriors=posteriors),
    ):
        model(*args, **kwargs)
        return [
            AttentionMap(
                name,
                posterior.mean_weights(),
                posterior.weight_relative_std(),
                posterior.relative_std(),
            )
            for name, posterior in posteriors
        ]
