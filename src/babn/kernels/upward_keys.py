"""The upward path over keys as one operation with gradients, for eager models; needs no Triton.

Compilers do as well with `upward_path`. An eager model spends more time on the calls of its dozens
of operations than the GPU on most of them.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class UpwardOverKeys(torch.autograd.Function):
    """The states after each step of the upward path.

    All states are parts of one tensor, behind the first one, so that a product gives the gradients
    of all maps.
    """

    @staticmethod
    def forward(
        ctx: Any, top: Tensor, mask: Tensor | None, weights: Tensor, biases: Tensor, steps: int
    ) -> tuple[Tensor, ...]:
        """Computes the states, and keeps them."""
        states = top.new_empty(steps + 1, *top.shape)
        each = states.unbind()
        each[0].copy_(top)
        hidden = None if mask is None else ~mask
        maps = (x.expand(steps, *x.shape[1:]).unbind() for x in (weights, biases))
        for step, (weight, bias) in enumerate(zip(*maps, strict=True)):
            x = F.linear(each[step], weight, bias)
            F.softplus(x, out=each[step + 1])  # type: ignore[call-arg]
            if hidden is not None:
                each[step + 1].masked_fill_(hidden, 0.0)
        ctx.save_for_backward(states, weights)
        return each[1:]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        r"""Gradients of the first state and of the maps, with the slope $1 - e^{-h}$ of softplus.

        The slope is zero at masked keys.
        """
        states, weights = ctx.saved_tensors
        steps = len(states) - 1
        slopes = states[1:].neg().expm1_().neg_()
        each, maps = slopes.unbind(), weights.expand(steps, *weights.shape[1:]).unbind()
        grad = grads[-1]
        for step in reversed(range(steps)):
            grad = each[step].mul_(grad) @ maps[step]  # from here on the slopes are gradients
            if step:
                grad = grad.add_(grads[step - 1])
        shape = len(weights), -1, states.shape[-1]
        before, after = states[:-1].reshape(shape), slopes.view(shape)
        return grad, None, after.transpose(1, 2) @ before, after.sum(1), None


def upward_over_keys(
    top: Tensor, mask: Tensor | None, weights: Tensor, biases: Tensor, steps: int
) -> list[Tensor]:
    """The states after each step of the upward path, in the precision of `top`.

    Args:
        top: The first state, zero at masked keys.
        mask: The keys that take part.
        weights: The map of each step, or one for all.
        biases: Their biases.
        steps: Number of steps.
    """
    return list(UpwardOverKeys.apply(top, mask, weights, biases, steps))
