"""Hooks that open a forward context, check calls, close the context, and add the KL to the loss.

After conversion, attention can still be changed: by another implementation in the configuration,
another forward or another module. Such a model would run without noise and without a KL. Two checks
detect it. They allow forward passes that skip layers, as with early exit, cached encoder outputs,
missing images and LayerDrop:

1. An attention module that ran has made a call in this forward pass.
2. All attention modules are still parts of the model.
"""

import inspect
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from babn.conversion.attend import CALL_SITE, Undo
from babn.conversion.checkpointing import keep_context_across_checkpoints
from babn.conversion.forward_context import active_context, begin, end
from babn.conversion.state import own_state
from babn.conversion.transformers_route import NAME, NAME_LIKE_SDPA
from babn.elbo import add_to_loss, nll_factor, rows_per_example
from babn.errors import ConversionError


def attach_hooks(model: nn.Module) -> list[Undo]:
    """Attaches all hooks of a model whose attention modules have call sites.

    Forward contexts open at the root, and at inner models that may be called directly.
    """
    sites = [module for module in model.modules() if hasattr(module, CALL_SITE)]
    undos: list[Undo] = [module.register_forward_hook(check_module).remove for module in sites]
    entries = [model, *(m for m in model.modules() if hasattr(m, "base_model_prefix"))]
    for module in dict.fromkeys(entries):
        if any(hasattr(inner, CALL_SITE) for inner in module.modules()):
            opening = module.register_forward_pre_hook(OpenContext(model), with_kwargs=True)
            closing = module.register_forward_hook(
                close_context, with_kwargs=True, always_call=True
            )
            undos += [opening.remove, closing.remove]
    return undos


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


def check_module(module: nn.Module, args: Any, output: Any) -> None:
    """Forward hook of attention modules: raises if the module made no call."""
    path = getattr(module, CALL_SITE).path
    context = active_context()
    if context is None or path not in context.counts:
        raise _changed(f"{path or type(module).__name__} ran without an attention call", module)


def check_parts(root: nn.Module, paths: Iterable[str]) -> None:
    """Raises if a path leads to no converted attention module any more."""
    if all(_leads_to_site(root, path) for path in paths):
        return
    # Wrappers that are added after conversion, such as FSDP's, change the path.
    sites = (getattr(module, CALL_SITE, None) for module in root.modules())
    held = {site.path for site in sites if site is not None}
    for path in paths:
        if path not in held:
            name = path or type(root).__name__
            raise _changed(f"{name} is no longer the module that it was", root)


def _leads_to_site(root: nn.Module, path: str) -> bool:
    module: nn.Module | None = root
    for name in path.split(".") if path else ():
        module = None if module is None else module._modules.get(name)
    return hasattr(module, CALL_SITE)


def _changed(what: str, module: nn.Module) -> ConversionError:
    """The error for attention that was changed after conversion."""
    found = getattr(getattr(module, "config", None), "_attn_implementation", None)
    remedy = "Undo that change"
    if found is not None and found not in (NAME, NAME_LIKE_SDPA):
        what += f" under attn_implementation={found!r}"
        remedy = f'Call model.set_attn_implementation("{NAME}")'
    return ConversionError(
        f"{what}: attention was changed after conversion, and would have no uncertainty. "
        f"{remedy}, or call babn.revert(model) if plain attention is wanted."
    )


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
