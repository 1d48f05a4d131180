"""The deterministic upward path: from the first layer's scores to a state for every layer.

Section 3.2 of Zhang et al. 2021, <https://arxiv.org/abs/2106.05251>.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from babn.attention.masking import Mask
from babn.attention.saved_memory import MaskedSoftplus
from babn.errors import KeyLengthError

Axis = Literal["keys", "heads"]


class AxisMap(nn.Module):
    r"""A linear layer over the keys or over the heads of an attention-shaped tensor.

    $$f(h)_{bhqj} = \sum_i A_{ji}\, h_{bhqi} + c_j \quad\text{(keys)}, \qquad
    f(h)_{bhqj} = \sum_g A_{hg}\, h_{bgqj} + c_h \quad\text{(heads)}.$$

    The maps $f_1$, $f_2$ and $f_3$ of Section 3.2 of
    [Zhang et al. 2021](https://arxiv.org/abs/2106.05251). Over keys, $A$ and $c$ are sliced to the
    keys of the call, so that padding, causal masks and cached generation change nothing.

    Args:
        axis: `"keys"`, for at most `size` keys, or `"heads"`, for any number of keys.
        size: The largest number of keys, or the number of heads.

    Example:
        >>> f = AxisMap("keys", size=8)
        >>> f(torch.zeros(1, 2, 3, 5)).shape
        torch.Size([1, 2, 3, 5])
    """

    def __init__(self, axis: Axis, size: int) -> None:
        super().__init__()
        self.axis = axis
        # Preserves the scale of the input.
        self.weight = nn.Parameter(
            nn.init.uniform_(torch.empty(size, size), -(size**-0.5), size**-0.5)
        )
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(
        self, h: Float[Tensor, "batch head query key"]
    ) -> Float[Tensor, "batch head query key"]:
        """The mapped tensor, of the same shape."""
        if self.axis == "heads":
            mapped = torch.matmul(self.weight.to(h.dtype), h.flatten(2)).unflatten(2, h.shape[2:])
            return mapped + self.bias.to(h.dtype)[:, None, None]
        keys = h.shape[-1]
        self.check_length(keys)
        return F.linear(h, self.weight[:keys, :keys].to(h.dtype), self.bias[:keys].to(h.dtype))

    def check_length(self, keys: int) -> None:
        """Raises an error for more keys than the map was built for."""
        if keys > len(self.bias):
            raise KeyLengthError(
                f"{keys} keys, but the upward path was built for max_length={len(self.bias)}. "
                f"Convert with max_length={keys} or more, truncate the input, or use "
                'upward="heads", which has no limit.'
            )


@dataclass(frozen=True)
class UpwardStates:
    r"""The states $h^1, \ldots, h^L$ of one forward pass, their keys in rank order.

    Args:
        h: The states, first layer first.
        rank: Rank of each key among those that the query sees; `None` if it equals the index.

    Example:
        >>> len(UpwardStates([torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 2, 2)], None).h)
        2
    """

    h: list[Float[Tensor, "batch head query key"]]
    rank: Int[Tensor, "#batch #head #query key"] | None


def upward_path(
    maps: list[AxisMap], top: Float[Tensor, "batch head query key"], mask: Mask | None
) -> list[Float[Tensor, "batch head query key"]]:
    r"""$h^{l} = \mathrm{softplus}(f_3^l(h^{l+1}))$ from the last layer to the first.

    Args:
        maps: $f_3^1, \ldots, f_3^L$.
        top: $h^{L+1} = \mathrm{softmax}(\Phi^1)$, zero at masked keys.
        mask: The keys that take part, in the same order as in `top`.

    Returns:
        $h^1, \ldots, h^L$.

    Example:
        >>> maps = [AxisMap("heads", size=2) for _ in range(3)]
        >>> [h.shape[-1] for h in upward_path(maps, torch.full((1, 2, 4, 4), 0.25), None)]
        [4, 4, 4]
    """
    states = [top]
    for f3 in reversed(maps):
        states.append(masked_softplus(f3(states[-1]), mask))
    return states[:0:-1]


def masked_softplus(
    x: Float[Tensor, "batch head query key"], mask: Mask | None
) -> Float[Tensor, "batch head query key"]:
    """Softplus, with zeros at masked keys."""
    value: Tensor = MaskedSoftplus.apply(x, mask)
    return value
