"""The contextual prior: its parameters are a small network's reading of the keys."""

import torch
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
        key = scores.key.to(self.inner.weight.dtype)
        values = self.outer(torch.relu(self.inner(key))).squeeze(-1)
        groups = scores.phi.shape[1] // values.shape[1]
        return values.repeat_interleave(groups, dim=1).unsqueeze(2).to(scores.phi.dtype)

    def log_alpha(self, scores: Scores) -> Float[Tensor, "batch head query key"]:
        r"""$\log\alpha$ with $\alpha = \mathrm{softmax}(f_2(\mathrm{ReLU}(f_1(K))))$ over the keys seen."""
        values = self(scores)
        if scores.mask is not None:
            values = values.expand_as(scores.phi)
        return log_normalize(values, scores.mask).expand_as(scores.phi)
