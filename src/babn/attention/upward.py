"""The deterministic upward path: from the first layer's scores to a state for every layer."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from babn.attention.fused import climb_and_lift, climb_over_heads, climb_over_keys
from babn.attention.inputs import Inputs
from babn.attention.masking import Mask, zero_masked
from babn.errors import KeyLengthError

Axis = Literal["keys", "heads"]


class AxisMap(nn.Module):
    """A linear layer over the keys or over the heads of an attention-shaped tensor.

    Over keys, the weights are sliced to the keys that there are, so that padding, causal masks and
    cached generation change nothing; there may be at most `size` keys. Over heads any length works.

    Args:
        axis: `"keys"` or `"heads"`.
        size: The largest number of keys, or the number of heads.
        rank: If not zero, the weight is a product of two matrices with this many columns and rows.
    """

    def __init__(self, axis: Axis, size: int, rank: int = 0) -> None:
        super().__init__()
        self.axis = axis
        self.rank = rank
        if rank:
            self.inner = nn.Parameter(uniform(rank, size))
            self.outer = nn.Parameter(uniform(size, rank))
        else:
            self.weight = nn.Parameter(uniform(size, size))
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(
        self, h: Float[Tensor, "batch head query key"]
    ) -> Float[Tensor, "batch head query key"]:
        """The mapped tensor, of the same shape."""
        return joint_map([self], h)


def uniform(rows: int, columns: int) -> Float[Tensor, "rows columns"]:
    """Random weights that keep the size of what they are multiplied with."""
    return nn.init.uniform_(torch.empty(rows, columns), -(columns**-0.5), columns**-0.5)


def joint_map(maps: Sequence[AxisMap], h: Float[Tensor, "batch head query key"]) -> Tensor:
    """Several maps over keys in one product, their results for a key side by side; or one map."""
    if maps[0].axis == "heads":
        (only,) = maps
        mapped = torch.matmul(only.weight.to(h.dtype), h.flatten(2)).unflatten(2, h.shape[2:])
        return mapped + only.bias.to(h.dtype)[:, None, None]
    keys = h.shape[-1]
    if maps[0].rank:
        check_length(maps[0], keys)
        bias = torch.stack([map.bias[:keys] for map in maps], 1).flatten().to(h.dtype)
        inner = torch.cat([map.inner[:, :keys] for map in maps]).to(h.dtype)
        outer = torch.block_diag(*(map.outer[:keys] for map in maps)).to(h.dtype)
        outer = outer.unflatten(0, (len(maps), keys)).transpose(0, 1).flatten(0, 1)
        return F.linear(F.linear(h, inner), outer, bias)
    return F.linear(h, *joint_weight(maps, h))


def joint_weight(maps: Sequence[AxisMap], h: Tensor) -> tuple[Tensor, Tensor]:
    """Weight and bias of several full maps over the keys of `h`, as one map."""
    keys = h.shape[-1]
    check_length(maps[0], keys)
    weight = torch.stack([map.weight[:keys, :keys] for map in maps], 1).flatten(0, 1)
    bias = torch.stack([map.bias[:keys] for map in maps], 1).flatten()
    return weight.to(h.dtype), bias.to(h.dtype)


def check_length(map: AxisMap, keys: int) -> None:
    """Refuses more keys than a map was built for."""
    if keys > len(map.bias):
        raise KeyLengthError(
            f"{keys} keys, but the upward path was built for max_length={len(map.bias)}. "
            f"Convert with max_length={keys} or more, truncate the input, or use "
            'upward="heads", which has no limit.'
        )


def climb(
    maps: list[AxisMap],
    top: Float[Tensor, "batch head query key"],
    mask: Mask | None,
) -> list[Float[Tensor, "batch head query key"]]:
    r"""$h^{l} = \mathrm{softplus}(f_3^l(h^{l+1}))$ from the last layer to the first.

    Args:
        maps: $f_3^1, \ldots, f_3^L$.
        top: $h^{L+1} = \mathrm{softmax}(\Phi^1)$, zero at masked keys.
        mask: The keys that take part, in the same order as in `top`.

    Returns:
        $h^1, \ldots, h^L$.
    """
    states = [top]
    for upward in reversed(maps):
        states.append(softplus_seen(upward(states[-1]), mask))
    return states[:0:-1]


def climb_by_kernels(
    maps: list[AxisMap], first: Inputs
) -> list[Float[Tensor, "batch head query key"]]:
    """The same path over heads from a chain's first call, by fused kernels; nothing is masked."""
    weights = torch.stack([upward.weight for upward in reversed(maps)])
    biases = torch.stack([upward.bias for upward in reversed(maps)])
    return climb_over_heads(first, weights, biases)[::-1]


def climb_by_products(
    maps: list[AxisMap], top: Float[Tensor, "batch head query key"], mask: Mask | None
) -> list[Float[Tensor, "batch head query key"]]:
    """The same path over keys by fused kernels, without gradients."""
    weights, biases = _stacked([[upward] for upward in reversed(maps)], top)
    return climb_over_keys(top, weights, biases, mask)[::-1]


def climb_and_lift_by_products(
    maps: list[AxisMap],
    lifts: list[list[AxisMap]],
    top: Float[Tensor, "batch head query key"],
    mask: Mask | None,
) -> list[Float[Tensor, "batch head query lifted"]]:
    """What each layer's maps to shape and scale make of its state, side by side."""
    weights, biases = _stacked([[upward] for upward in reversed(maps)], top)
    lift_weights, lift_biases = _stacked(lifts[::-1], top)
    return climb_and_lift(top, weights, biases, lift_weights, lift_biases, mask)[::-1]


def _stacked(maps: Sequence[Sequence[AxisMap]], h: Tensor) -> tuple[Tensor, Tensor]:
    """Weights and biases of maps over the keys of `h`, one joint map after the other."""
    weights, biases = zip(*joint_weights(maps, h), strict=True)
    return torch.stack(weights), torch.stack(biases)


def joint_weights(maps: Sequence[Sequence[AxisMap]], h: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Joint maps as in `joint_weight`; those that layers share are made once."""
    found: list[tuple[Tensor, Tensor]] = []
    for index, own in enumerate(maps):
        same = (i for i in range(index) if all(a is b for a, b in zip(maps[i], own, strict=True)))
        known = next(same, None)
        found.append(joint_weight(own, h) if known is None else found[known])
    return found


def softplus_seen(
    x: Float[Tensor, "batch head query key"], mask: Mask | None
) -> Float[Tensor, "batch head query key"]:
    """Softplus, with zeros at masked keys."""
    value: Tensor = _SoftplusSeen.apply(x, mask)
    return value


class _SoftplusSeen(torch.autograd.Function):
    r"""The derivative is $1 - e^{-h}$ in terms of the value, which the next map keeps anyway."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor | None) -> Tensor:
        h = zero_masked(F.softplus(x), mask)
        ctx.save_for_backward(h)
        return h

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (h,) = ctx.saved_tensors
        return grad * -torch.expm1(-h), None
