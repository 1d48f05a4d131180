"""Hooks that open and close forward contexts, their stack, and checkpointing inside of them."""

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from babn.conversion.forward_context import ForwardContext, Snapshot
from babn.conversion.override import active_override
from babn.conversion.state import BeliefState, CallSite, own_state
from babn.elbo import add_to_loss, nll_factor, rows_per_example
from babn.errors import CheckpointingError, DeviceError, NotConvertedError

_CHECKPOINT = "_gradient_checkpointing_func"


class _Local(threading.local):
    """Each thread has its own contexts, so one model can serve several threads."""

    def __init__(self) -> None:
        self.contexts: list[tuple[nn.Module | None, ForwardContext]] = []


_local = _Local()


def begin(
    module: nn.Module, state: BeliefState, needs_weights: bool = False, cache: Any = None
) -> None:
    """Enters a module of a converted model: opens a context, or nests in the current one.

    A module cannot be nested in itself, so an existing entry is left over from an interrupted pass.
    """
    for depth, (entered, _) in enumerate(_local.contexts):
        if entered is module:
            del _local.contexts[depth:]
            break
    current = active_context()
    if current is None or current.state is not state:
        state.last_kl = None
        state.warn_of_unused_kl()
        override = active_override(state)
        current = ForwardContext(state, module.training, override, needs_weights, cache)
    _local.contexts.append((module, current))


def end(module: nn.Module) -> ForwardContext | None:
    """Leaves a module; returns the context if this was its outermost level."""
    contexts = _local.contexts
    if not contexts or contexts[-1][0] is not module:  # an earlier hook failed before ours began
        return None
    _, finished = contexts.pop()
    return None if active_context() is finished else finished


def current_context(site: CallSite) -> ForwardContext:
    """The context that an attention call belongs to."""
    current = active_context()
    if current is None and torch._C._current_graph_task_id() != -1:
        raise CheckpointingError(
            f"{site.path} is recomputed by a checkpoint that does not know its forward pass. Use "
            "babn.checkpoint in place of torch.utils.checkpoint.checkpoint."
        )
    if current is None:
        raise NotConvertedError(
            f"{site.path} was called outside the converted model, so its upward path is missing. "
            "Call the converted model itself (or revert it first)."
        )
    return current


def active_context() -> ForwardContext | None:
    """The innermost context of this thread, if any."""
    return _local.contexts[-1][1] if _local.contexts else None


@contextmanager
def resumed(context: ForwardContext, snapshot: Snapshot) -> Iterator[None]:
    """Resumes a context at an earlier point, for recomputation under checkpointing."""
    later = context.snapshot()
    context.restore(snapshot)
    _local.contexts.append((None, context))
    try:
        yield
    finally:
        _local.contexts.pop()
        context.restore(later)


class Enter:
    """Opens a forward context before a module's forward.

    An object and not a function, so that copies of the model get hooks with the copied state.
    """

    def __init__(self, root: nn.Module) -> None:
        self.root = root
        self.checkpointed = [m for m in root.modules() if hasattr(m, "gradient_checkpointing")]

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Opens the context with the state of this module, which may be a replica."""
        state = own_state(module) or own_state(self.root)
        assert state is not None
        begin(module, state, wants_weights(module, kwargs), kwargs.get("past_key_values"))
        if not torch.compiler.is_compiling():
            self._check_devices(module, state, (*args, *kwargs.values()))
            if module.training:
                keep_context_across_checkpoints(self.checkpointed)

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
    """Whether the caller of a transformers model requests attention weights."""
    config = getattr(module, "config", None)
    given = kwargs.get("output_attentions")
    return bool(getattr(config, "output_attentions", False) if given is None else given)


def leave(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
    """Closes a forward context after a module's forward.

    Adds the weighted KL to the loss in training, and attaches the KL to the output.
    """
    finished = end(module)
    if finished is None or not finished.with_kl:
        return output
    per_layer = finished.layer_kl.per_layer()
    reduction = finished.state.config.kl_reduction
    inputs = named_inputs(module, args, kwargs) if reduction == "sum" else {}
    if (rows := rows_per_example(inputs)) > 1:
        per_layer = {name: rows * kl for name, kl in per_layer.items()}
    finished.state.last_kl = per_layer
    if not per_layer:
        return output
    if finished.training:
        finished.state.follow_kl(output, per_layer)
    kl = torch.stack(list(per_layer.values())).sum()
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


class CheckpointInContext:
    """A checkpointing function that recomputes inside its forward context."""

    def __init__(self, inner: Callable[..., Any]) -> None:
        keywords = inner.keywords if isinstance(inner, functools.partial) else {}
        if keywords.get("use_reentrant"):
            raise reentrant_error()
        self.inner = inner

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls `function` under checkpointing."""
        context = active_context()
        if context is None:
            return self.inner(function, *args, **kwargs)
        return self.inner(_Recomputable(function, context), *args, **kwargs)


class _Recomputable:
    """A function that resumes its forward context when it is recomputed in backward."""

    def __init__(self, function: Callable[..., Any], context: ForwardContext) -> None:
        self.function = function
        self.context = context
        self.snapshot = context.snapshot()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if active_context() is self.context:
            return self.function(*args, **kwargs)
        if self.context.override.noise_source.seeds is not None:
            raise CheckpointingError(
                "Seeded sampling uses its own generators, which recomputation cannot rewind. "
                "Sample without gradients, or turn gradient checkpointing off."
            )
        with resumed(self.context, self.snapshot):
            return self.function(*args, **kwargs)


def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`torch.utils.checkpoint.checkpoint` for code inside a converted model."""
    from torch.utils.checkpoint import checkpoint as torch_checkpoint

    inner = functools.partial(torch_checkpoint, use_reentrant=kwargs.pop("use_reentrant", False))
    return CheckpointInContext(inner)(function, *args, **kwargs)


def keep_context_across_checkpoints(modules: list[nn.Module]) -> None:
    """Wraps the checkpointing functions that transformers has put on modules."""
    for module in modules:
        inner = module.__dict__.get(_CHECKPOINT)
        if inner is not None and not isinstance(inner, CheckpointInContext):
            module.__dict__[_CHECKPOINT] = CheckpointInContext(inner)


def unwrap_checkpoints(model: nn.Module) -> None:
    """Removes the wrapping."""
    for module in model.modules():
        inner = module.__dict__.get(_CHECKPOINT)
        if isinstance(inner, CheckpointInContext):
            module.__dict__[_CHECKPOINT] = inner.inner


def check_not_reentrant(context: ForwardContext) -> None:
    """Raises under reentrant checkpointing, which would silently drop the gradients of the KL."""
    if not context.training or not context.grad_enabled or torch.is_grad_enabled():
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
