"""The contextual prior: its parameters are a small network's reading of the keys."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from babn.attention.masking import log_normalize
from babn.attention.rule import Scores


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

    def forward(self, scores: Scores) -> Float[Tensor, "batch head 1 key"]:
        """One number for each key, the same for all queries."""
        hidden = torch.relu(_linear(self.inner, scores.key.to(scores.phi.dtype)))
        values = _linear(self.outer, hidden).squeeze(-1)
        groups = scores.phi.shape[1] // values.shape[1]
        return values.repeat_interleave(groups, dim=1).unsqueeze(2)

    def log_alpha(self, scores: Scores) -> Float[Tensor, "batch head query key"]:
        r"""$\log\alpha$, where $\alpha$ is the softmax of the numbers over the keys seen."""
        values = self(scores)
        if scores.mask is not None:
            values = values.expand_as(scores.phi)
        return log_normalize(values, scores.mask).expand_as(scores.phi)


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """A linear layer in the precision of its input, whatever that of its parameters."""
    return F.linear(x, layer.weight.to(x.dtype), layer.bias.to(x.dtype))
