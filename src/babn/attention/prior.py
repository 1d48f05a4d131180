"""The contextual prior: its parameters are a small network's reading of the keys."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from babn.attention.fused import PriorNetwork
from babn.attention.inputs import Scores
from babn.attention.masking import is_rowwise, log_normalize


class KeyNetwork(nn.Module):
    r"""Two linear layers that give each key one number, $f_2(\mathrm{ReLU}(f_1(K)))$.

    Args:
        head_dim: Size of one head's keys.
        hidden: Width between the layers.
    """

    def __init__(self, head_dim: int, hidden: int) -> None:
        super().__init__()
        self.inner = nn.Linear(head_dim, hidden)
        self.outer = nn.Linear(hidden, 1)

    def forward(
        self, key: Float[Tensor, "batch keyhead key dim"]
    ) -> Float[Tensor, "batch keyhead key"]:
        """One number for each key, the same for all queries."""
        return _linear(self.outer, torch.relu(_linear(self.inner, key))).squeeze(-1)

    def log_alpha(self, scores: Scores) -> Float[Tensor, "batch head #query key"]:
        r"""$\log\alpha$, where $\alpha$ is the softmax of the numbers over the keys seen.

        One row for all queries, unless they differ in the keys that they see.
        """
        values = self(scores.key.to(scores.phi.dtype))
        groups = scores.phi.shape[1] // values.shape[1]
        values = values.repeat_interleave(groups, dim=1).unsqueeze(2)
        if is_rowwise(scores.mask):
            values = values.expand_as(scores.phi)
        return log_normalize(values, scores.mask)

    def layers(self) -> PriorNetwork:
        """The layers for a kernel, which reads the keys itself."""
        return PriorNetwork(self.inner.weight, self.inner.bias, self.outer.weight, self.outer.bias)


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """A linear layer in the precision of its input, whatever that of its parameters."""
    return F.linear(x, layer.weight.to(x.dtype), layer.bias.to(x.dtype))
