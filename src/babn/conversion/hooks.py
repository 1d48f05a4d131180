"""Hooks that open and close a forward pass at the root, and keep it across checkpointing."""

import functools
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from babn.conversion.kl_use import follow_kl
from babn.conversion.pass_stack import active_pass, begin, end, resumed
from babn.conversion.passes import Pass
from babn.conversion.state import BeliefState, own_state
from babn.elbo import add_to_loss
from babn.errors import CheckpointingError, DeviceError

_CHECKPOINT = "_gradient_checkpointing_func"


class Enter:
    """Opens a pass before a module's forward.

    An object and not a function, so that copies of the model get hooks that know the copied state.
    """

    def __init__(self, root: nn.Module) -> None:
        self.root = root
        self.checkpointed = [m for m in root.modules() if hasattr(m, "gradient_checkpointing")]

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Begins the pass with the parameters of this module, which may be a replica."""
        state = own_state(module) or own_state(self.root)
        assert state is not None
        begin(module, state, wants_weights(module, kwargs), kwargs.get("past_key_values"))
        if not torch.compiler.is_compiling():
            self._check_devices(module, state, (*args, *kwargs.values()))
            if module.training:
                keep_pass_across_checkpoints(self.checkpointed)

    @staticmethod
    def _check_devices(module: nn.Module, state: BeliefState, inputs: tuple[Any, ...]) -> None:
        spread = hasattr(module, "hf_device_map") or type(state.kl_weight) is not Tensor
        for value in () if spread else inputs:
            if isinstance(value, Tensor) and value.device != state.kl_weight.device:
                raise DeviceError(
                    f"An input is on {value.device}, the model on {state.kl_weight.device}. "
                    f"Move the batch with .to({str(state.kl_weight.device)!r}) or the model."
                )


def wants_weights(module: nn.Module, kwargs: dict[str, Any]) -> bool:
    """Whether the caller of a transformers model asks for attention weights."""
    config = getattr(module, "config", None)
    asked = kwargs.get("output_attentions")
    return bool(getattr(config, "output_attentions", False) if asked is None else asked)


class Leave:
    """Closes a pass after a module's forward, and hands the divergence to the output."""

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> Any:
        """Adds the weighted divergence to the loss in training and notes it on the output."""
        finished = end(module)
        if finished is None or not finished.with_kl:
            return output
        per_layer = finished.divergences.per_layer()
        finished.state.last_kl = per_layer
        if not per_layer:
            return output
        if finished.training:
            follow_kl(finished.state, output, per_layer)
        kl = torch.stack(list(per_layer.values())).sum()
        if finished.training and finished.override.add_kl:
            output = add_to_loss(output, finished.state.kl_weight * kl)
        elif finished.training and torch.distributed.is_initialized():
            output = tied(output, kl)
        if not isinstance(output, Tensor):
            # Attributes, not dictionary entries, which a Trainer would take for logits. Outputs
            # that take no attributes (tuples, frozen classes) go without.
            with suppress(AttributeError):
                output.belief_kl = kl
                output.belief_kl_per_layer = per_layer
        return output


def tied(output: Any, kl: Tensor) -> Any:
    """The output with nothing added but a dependence on the divergence.

    DDP looks for unused parameters in the graph of the output. A divergence that joins the loss
    later is not there, and its parameters would be marked ready twice.
    """
    leaves, tree = pytree.tree_flatten(output)
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor) and leaf.requires_grad:
            leaves[i] = leaf + (0 * kl).to(leaf.dtype)
            return pytree.tree_unflatten(leaves, tree)
    return output


class CheckpointWithPass:
    """A checkpointing function that recomputes inside the forward pass it belongs to."""

    def __init__(self, inner: Callable[..., Any]) -> None:
        keywords = inner.keywords if isinstance(inner, functools.partial) else {}
        if keywords.get("use_reentrant"):
            raise reentrant_error()
        self.inner = inner

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls `function` under checkpointing."""
        forward_pass = active_pass()
        if forward_pass is None:
            return self.inner(function, *args, **kwargs)
        return self.inner(_Recomputable(function, forward_pass), *args, **kwargs)


class _Recomputable:
    """A function that finds its pass again when it is called once more in backward."""

    def __init__(self, function: Callable[..., Any], forward_pass: Pass) -> None:
        self.function = function
        self.forward_pass = forward_pass
        self.snapshot = forward_pass.snapshot()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if active_pass() is self.forward_pass:
            return self.function(*args, **kwargs)
        if self.forward_pass.override.noise_source.seeds is not None:
            raise CheckpointingError(
                "Seeded sampling draws from its own generators, which recomputation cannot rewind. "
                "Sample without gradients, or turn gradient checkpointing off."
            )
        with resumed(self.forward_pass, self.snapshot):
            return self.function(*args, **kwargs)


def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`torch.utils.checkpoint.checkpoint` for code inside a converted model."""
    from torch.utils.checkpoint import checkpoint as torch_checkpoint

    inner = functools.partial(torch_checkpoint, use_reentrant=kwargs.pop("use_reentrant", False))
    return CheckpointWithPass(inner)(function, *args, **kwargs)


def keep_pass_across_checkpoints(modules: list[nn.Module]) -> None:
    """Wraps the checkpointing functions that transformers has put on modules."""
    for module in modules:
        inner = module.__dict__.get(_CHECKPOINT)
        if inner is not None and not isinstance(inner, CheckpointWithPass):
            module.__dict__[_CHECKPOINT] = CheckpointWithPass(inner)


def unwrap_checkpoints(model: nn.Module) -> None:
    """Takes the wrapping off again."""
    for module in model.modules():
        inner = module.__dict__.get(_CHECKPOINT)
        if isinstance(inner, CheckpointWithPass):
            module.__dict__[_CHECKPOINT] = inner.inner


def check_not_reentrant(forward_pass: Pass) -> None:
    """Refuses reentrant checkpointing, which would silently drop the divergence's gradients."""
    if not forward_pass.training or not forward_pass.grad_enabled or torch.is_grad_enabled():
        return
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        in_checkpoint = frame.f_code.co_filename.endswith("torch/utils/checkpoint.py")
        if in_checkpoint and frame.f_code.co_qualname.startswith("CheckpointFunction"):
            raise reentrant_error()


def reentrant_error() -> CheckpointingError:
    """The error for reentrant checkpointing."""
    return CheckpointingError(
        "use_reentrant=True: reentrant checkpointing drops the gradients of the KL term. Use "
        'use_reentrant=False, e.g. gradient_checkpointing_enable({"use_reentrant": False}).'
    )
