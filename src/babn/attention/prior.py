"""The contextual prior: the shapes of the gamma distributions come from an MLP over the keys."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from babn.attention.inputs import Scores, repeat_heads
from babn.attention.masking import is_rowwise, log_normalize


class KeyNetwork(nn.Module):
    r"""An MLP with one output per key, whose softmax over the keys is the prior's shape.

    $$\alpha = \mathrm{softmax}(f_2(\mathrm{ReLU}(f_1(K))))$$

    Section 3.1 of [Zhang et al. 2021](https://arxiv.org/abs/2106.05251).

    Args:
        head_dim: Size of one head's keys.
        hidden: Width of the hidden layer.

    Example:
        >>> network = KeyNetwork(head_dim=8, hidden=10)
        >>> network(torch.zeros(1, 2, 5, 8)).shape
        torch.Size([1, 2, 5])
    """

    def __init__(self, head_dim: int, hidden: int) -> None:
        super().__init__()
        self.inner = nn.Linear(head_dim, hidden)
        self.outer = nn.Linear(hidden, 1)

    def forward(
        self, key: Float[Tensor, "batch keyhead key dim"]
    ) -> Float[Tensor, "batch keyhead key"]:
        """One number for each key, the same for all queries."""
        swapped = not key.is_contiguous()  # projections put heads after keys: no copy this way
        x = key.transpose(1, 2) if swapped else key
        x = _linear(self.outer, torch.relu_(_linear(self.inner, x))).squeeze(-1)
        return x.transpose(1, 2) if swapped else x

    def log_alpha(self, scores: Scores) -> Float[Tensor, "batch head #query key"]:
        r"""$\log\alpha$, normalised over the keys that take part.

        One row for all queries, unless the mask differs between queries or heads.
        """
        values = self(scores.key.to(scores.phi.dtype)).unsqueeze(2)
        values = repeat_heads(values, scores.phi.shape[1])
        if is_rowwise(scores.mask):
            values = values.expand_as(scores.phi)
        return log_normalize(values, scores.mask)


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """Applies a linear layer in the precision of its input."""
    return F.linear(x, layer.weight.to(x.dtype), layer.bias.to(x.dtype))
