"""Detects training steps whose loss lacks the KL."""

import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from babn.conversion.state import BeliefState
from babn.errors import BabnWarning


class KLUse:
    """Which parts of a forward pass a backward pass has reached.

    Attributes:
        output: Whether gradients reached an output.
        kl: Whether gradients reached the KL of a layer.
    """

    def __init__(self) -> None:
        self.output = False
        self.kl = False

    def follow(self, output: Any, layers: Iterable[Tensor]) -> None:
        """Registers hooks on an output and on the KL of its layers."""
        for node in {x.grad_fn for x in layers if x.grad_fn is not None}:
            node.register_prehook(self._note_kl)
        for x in pytree.tree_leaves(output):
            if isinstance(x, Tensor) and x.grad_fn is not None:
                x.grad_fn.register_prehook(self._note_output)

    def _note_kl(self, _: Any) -> None:
        self.kl = True

    def _note_output(self, _: Any) -> None:
        self.output = True


def follow_kl(state: BeliefState, output: Any, layers: dict[str, Tensor]) -> None:
    """Tracks the use of the KL of a training forward; compiled ones are not tracked."""
    if torch.compiler.is_compiling() or state.kl_use is WARNED:
        return
    if any(x.requires_grad for x in layers.values()):
        state.kl_use = KLUse()
        state.kl_use.follow(output, layers.values())


def warn_of_unused_kl(state: BeliefState) -> None:
    """Warns, once for each model, if the last training step used the outputs without the KL.

    Called at the next forward, since until then a second backward may reach the KL.
    """
    if torch.compiler.is_compiling() or state.kl_use is None or state.kl_use is WARNED:
        return
    unused = state.kl_use.output and not state.kl_use.kl and float(state.kl_weight) > 0
    state.kl_use = WARNED if unused else None
    if unused:
        warnings.warn(
            "The last training step left out the KL: its loss was computed from the model's "
            "outputs, as by transformers' Trainer with label smoothing or compute_loss_func. Use "
            "babn.BeliefTrainer, add babn.weighted_kl(model) to the loss, or call "
            "babn.set_kl_weight(model, 0) if you do not want it.",
            BabnWarning,
            stacklevel=2,
        )


WARNED = KLUse()
"""Marks a state whose user has been warned."""
