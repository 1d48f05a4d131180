"""Bayesian attention as a module, for people who write their own."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from babn.attention.belief import BeliefConfig
from babn.attention.inputs import Inputs, repeat_heads
from babn.attention.noise_source import GLOBAL_NOISE
from babn.attention.rule import ChainShape, Posterior, RuleConfig
from babn.conversion.attend import read_mask
from babn.conversion.divergence import reduce_divergence


@dataclass(frozen=True)
class AttentionInfo:
    """What one call of [`BayesianAttention`][babn.BayesianAttention] found besides its output.

    Attributes:
        kl: Divergence of the posterior from the prior, reduced as the configuration says; zero for
            rules without a prior.
        weights: The weights that were used.
        posterior: Their distribution.
    """

    kl: Float[Tensor, ""]
    weights: Float[Tensor, "batch head query key"]
    posterior: Posterior


class BayesianAttention(nn.Module):
    """Scaled dot product attention with random weights: a chain of one layer.

    Draws samples in training and uses the posterior mean in evaluation. To make the layers of a
    deep model one belief network, let them call `F.scaled_dot_product_attention` and convert the
    model instead.

    Args:
        heads: Attention heads.
        head_dim: Size of one head.
        config: The rule; `BeliefConfig()` by default.

    Example:
        >>> layer = BayesianAttention(heads=2, head_dim=8)
        >>> x = torch.randn(1, 2, 5, 8)
        >>> output, info = layer(x, x, x)
        >>> output.shape, info.kl.shape
        (torch.Size([1, 2, 5, 8]), torch.Size([]))
    """

    def __init__(self, heads: int, head_dim: int, config: RuleConfig | None = None) -> None:
        super().__init__()
        self.config = config or BeliefConfig()
        self.rule = self.config.build(ChainShape(heads, head_dim, (0,)))

    def forward(
        self,
        query: Float[Tensor, "batch head query dim"],
        key: Float[Tensor, "batch keyhead key dim"],
        value: Float[Tensor, "batch keyhead key valuedim"],
        mask: Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        sample: bool | None = None,
    ) -> tuple[Float[Tensor, "batch head query valuedim"], AttentionInfo]:
        """Output and information of one call.

        Args:
            query: Queries.
            key: Keys.
            value: Values.
            mask: Boolean (`True` takes part) or additive, broadcast to batch, head, query, key.
            is_causal: Whether a query sees only keys up to its own index.
            scale: Factor of the scores, one over the root of the head size by default.
            sample: Whether to draw a sample; by default only in training.
        """
        pairs, bias = read_mask(mask, query, key, is_causal)
        scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        with torch.autocast(query.device.type, enabled=False):
            scores = Inputs(query, key, value, scale, pairs, bias).scores()
            posterior = self.rule(0, scores, self.rule.upward(scores))
            sampled = self.training if sample is None else sample
            weights = (
                posterior.sample_weights(GLOBAL_NOISE) if sampled else posterior.mean_weights()
            )
            divergence = posterior.kl()
        kl = scores.phi.new_zeros(())
        if divergence is not None:
            kl = reduce_divergence(divergence, posterior.kl_mask(pairs), self.config.kl_reduction)
        output = weights.to(value.dtype) @ repeat_heads(value, weights.shape[1])
        return output, AttentionInfo(kl, weights, posterior)
