"""Detects training steps whose loss lacks the KL."""

import warnings
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from babn.conversion.state import BeliefState
from babn.errors import BabnWarning


def follow_kl(state: BeliefState, output: Any, layers: dict[str, Tensor]) -> None:
    """Records which parts of a training forward a backward pass reaches: outputs, KL or both.

    Compiled forwards are not tracked.
    """
    if torch.compiler.is_compiling() or state.kl_warned:
        return
    if not any(x.requires_grad for x in layers.values()):
        return
    reached: set[str] = set()
    state.kl_use = reached
    for node in {x.grad_fn for x in layers.values() if x.grad_fn is not None}:
        node.register_prehook(lambda _: reached.add("kl"))
    for x in pytree.tree_leaves(output):
        if isinstance(x, Tensor) and x.grad_fn is not None:
            x.grad_fn.register_prehook(lambda _: reached.add("output"))


def warn_of_unused_kl(state: BeliefState) -> None:
    """Warns, once for each model, if the last training step used the outputs without the KL.

    Called at the next forward, since until then a second backward may reach the KL.
    """
    if torch.compiler.is_compiling() or state.kl_use is None:
        return
    reached, state.kl_use = state.kl_use, None
    if reached == {"output"} and float(state.kl_weight) > 0:
        state.kl_warned = True
        warnings.warn(
            "The last training step left out the KL: its loss was computed from the model's "
            "outputs, as by transformers' Trainer with label smoothing or compute_loss_func. Use "
            "babn.BeliefTrainer, add babn.weighted_kl(model) to the loss, or call "
            "babn.set_kl_weight(model, 0) if you do not want it.",
            BabnWarning,
            stacklevel=2,
        )
