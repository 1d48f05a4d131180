"""Features of inputs: the mean states of layers, and the input of the last linear layer."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from babn.conversion.state import ATTRIBUTE
from babn.errors import ConfigError
from babn.prediction.batches import Batches, arguments
from babn.prediction.sampling import evaluating

HEADS = ("classifier", "score", "pre_classifier", "classification_head", "qa_outputs")
"""Names of the heads of transformers models, which `from_pretrained` may initialise at random."""


def find_head(model: nn.Module) -> tuple[str, nn.Linear]:
    """Path and module of the last linear layer, inside the head if the model names one."""
    layers = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and ATTRIBUTE not in name.split(".")
    }
    inside = [name for name in layers if set(name.split(".")) & set(HEADS)]
    if not layers:
        raise ConfigError(f"{type(model).__name__} has no linear layer. Give a classifier.")
    path = (inside or list(layers))[-1]
    return path, layers[path]


def find_layers(model: nn.Module) -> list[nn.Module]:
    """The layers of an encoder: the longest list of modules of one type, or an empty list."""
    lists = [
        list(module)
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList)
        and ATTRIBUTE not in name.split(".")
        and len({type(each) for each in module}) == 1
    ]
    return max(lists, key=len, default=[])


def features(
    model: nn.Module,
    data: Any,
    head: nn.Module,
    layers: Sequence[nn.Module] = (),
    *,
    tokenizer: Any = None,
    batch_size: int = 32,
    progress: bool = False,
) -> list[Tensor]:
    """The mean state of each layer, and the input of the head, at the posterior mean, on the CPU.

    Means are over tokens that are not padding. Layers whose output does not have one row per
    example are left out.

    Args:
        model: The model.
        data: A batch, batches or texts, as for `babn.predict`.
        head: The module whose input comes last in the result.
        layers: Modules whose outputs come before it.
        tokenizer: The model's tokenizer, for texts.
        batch_size: Texts in one batch.
        progress: Whether to show a progress bar over several batches.
    """
    batches = Batches.of(model, data, tokenizer, batch_size)
    states: list[Tensor] = []
    received: list[Tensor] = []

    def keep_state(_: nn.Module, __: Any, output: Any) -> None:
        states.append(output if isinstance(output, Tensor) else output[0])

    def keep_received(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        received.append(next(iter((*args, *named.values()))))

    found: list[list[Tensor]] = []
    with ExitStack() as hooks, torch.no_grad(), evaluating(model):
        for layer in layers:
            hooks.enter_context(layer.register_forward_hook(keep_state))
        hooks.enter_context(head.register_forward_pre_hook(keep_received, with_kwargs=True))
        for batch in batches.shown("computing features", progress):
            args, named = arguments(batch)
            states.clear()
            received.clear()
            model(*args, **named)
            rows, mask = len(received[-1]), named.get("attention_mask")
            means = [_mean(x, mask) for x in states if x.ndim > 2 and len(x) == rows]
            found.append([x.float().cpu() for x in (*means, received[-1])])
    return [batches.in_order(torch.cat(parts)) for parts in zip(*found, strict=True)]


def _mean(x: Float[Tensor, "row *token feature"], mask: Any) -> Float[Tensor, "row feature"]:
    """The mean over the tokens of each row that are not padding."""
    tokens = x.flatten(1, -2).float()
    if not isinstance(mask, Tensor) or mask.shape != tokens.shape[:2]:
        return tokens.mean(1)
    weight = mask.to(tokens).unsqueeze(-1)
    return (tokens * weight).sum(1) / weight.sum(1).clamp(min=1)
