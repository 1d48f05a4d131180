"""Maps of attention weights and of their uncertainty."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from babn.attention.method import Posterior
from babn.conversion.example_inputs import as_call
from babn.conversion.override import overriding
from babn.prediction.batches import (
    are_texts,
    check_tokenizer,
    device_of,
    encode,
    is_single,
    text_batches,
)
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


def attention_uncertainty(
    model: nn.Module, data: Any, *, tokenizer: Any = None, batch_size: int = 32
) -> Float[Tensor, "example"]:
    r"""Returns how uncertain the attention to each example is, as a score of unusual inputs.

    The mean over attention calls, heads and queries of $\sum_j \mathrm{std}(W_{ij})$, where a query
    counts unless `attention_mask` hides it.

    Args:
        model: A converted model.
        data: A batch, an iterable of batches, or a list of texts, as for `babn.predict`.
        tokenizer: The model's tokenizer, for texts.
        batch_size: Texts in one batch.
    """
    if are_texts(data):
        check_tokenizer(tokenizer)
        batches, order = text_batches(tokenizer, data, batch_size, device_of(model))
        return torch.cat([_spread(model, batch) for batch in batches])[order]
    return torch.cat([_spread(model, batch) for batch in ([data] if is_single(data) else data)])


def _spread(model: nn.Module, batch: Any) -> Float[Tensor, "example"]:
    """The score of each example of a batch."""
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    scores = []
    for each in attention_maps(model, batch):
        by_query = (each.mean * each.relative_std).sum(-1).mean(1).cpu()
        seen = torch.ones_like(by_query)
        if mask is not None and mask.shape == seen.shape:
            seen = mask.cpu().to(seen)
        scores.append((by_query * seen).sum(-1) / seen.sum(-1))
    return torch.stack(scores).mean(0)
