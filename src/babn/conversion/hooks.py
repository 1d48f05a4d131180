"""Hooks that open a forward context, and that close it and add the KL to the loss."""

import inspect
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from babn.conversion.attend import CALL_SITE
from babn.conversion.call_checks import check_parts
from babn.conversion.checkpointing import keep_context_across_checkpoints
from babn.conversion.forward_context import begin, end
from babn.conversion.state import own_state
from babn.elbo import add_to_loss, nll_factor, rows_per_example


class OpenContext:
    """Opens a forward context before a module's forward.

    An object and not a function, so that copies of the model get hooks with the copied state.
    """

    def __init__(self, root: nn.Module) -> None:
        self.root = root
        sites = (getattr(module, CALL_SITE, None) for module in root.modules())
        self.paths = [site.path for site in sites if site is not None]
        self.checkpointed = [m for m in root.modules() if hasattr(m, "gradient_checkpointing")]

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Opens the context with the state of this module, which may be a replica."""
        state = own_state(module) or own_state(self.root)
        assert state is not None
        if begin(module, state, wants_weights(module, kwargs), kwargs.get("past_key_values")):
            check_parts(self.root, self.paths)
        if module.training and not torch.compiler.is_compiling():
            keep_context_across_checkpoints(self.checkpointed)


def wants_weights(module: nn.Module, kwargs: dict[str, Any]) -> bool:
    """Whether the caller of a transformers model requests attention weights."""
    config = getattr(module, "config", None)
    given = kwargs.get("output_attentions")
    return bool(getattr(config, "output_attentions", False) if given is None else given)


def close_context(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
) -> Any:
    """Closes a forward context after a module's forward.

    Adds the weighted KL to the loss in training, and attaches the KL to the output.
    """
    finished = end(module)
    if finished is None or not finished.with_kl:
        return output
    per_layer, kl = finished.layer_kl.per_layer()
    reduction = finished.state.config.kl_reduction
    inputs = named_inputs(module, args, kwargs) if reduction == "sum" else {}
    if (rows := rows_per_example(inputs)) > 1 and kl is not None:
        per_layer, kl = {name: rows * each for name, each in per_layer.items()}, rows * kl
    finished.state.last_kl = per_layer
    if kl is None:
        return output
    if finished.training:
        finished.state.follow_kl(output, [*per_layer.values(), kl])
    if finished.training and finished.override.add_kl:
        factor = nll_factor(module, inputs, reduction)
        output = add_to_loss(output, finished.state.kl_weight * kl, factor)
    elif finished.training and torch.distributed.is_initialized():
        output = tied(output, kl)
    if not isinstance(output, Tensor):
        # Attributes, not dictionary entries, which a Trainer would treat as logits. Outputs
        # without attributes (tuples, frozen classes) are left unchanged.
        with suppress(AttributeError):
            output.belief_kl = kl
            output.belief_kl_per_layer = per_layer
    return output


def named_inputs(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """The arguments of a forward by name."""
    names = list(inspect.signature(module.forward).parameters) if args else []
    return {**dict(zip(names, args, strict=False)), **kwargs}


def tied(output: Any, kl: Tensor) -> Any:
    """Adds the KL to the graph of the output, but not to its value.

    DDP looks for unused parameters in the graph of the output. If the KL joins the loss later, its
    parameters are not in that graph and would be marked ready twice.
    """
    leaves, tree = pytree.tree_flatten(output)
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor) and leaf.requires_grad:
            leaves[i] = leaf + (0 * kl).to(leaf.dtype)
            return pytree.tree_unflatten(leaves, tree)
    return output
