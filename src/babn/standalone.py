"""Bayesian attention as a module, for models that are not converted."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from babn.attention.belief import BeliefConfig
from babn.attention.inputs import Inputs, repeat_heads
from babn.attention.method import ChainShape, MethodConfig
from babn.attention.noise_source import GLOBAL_NOISE
from babn.attention.posterior import Posterior
from babn.conversion.attend import read_mask
from babn.elbo import reduce_kl


@dataclass(frozen=True)
class AttentionInfo:
    """What [`BayesianAttention`][babn.BayesianAttention] returns beside its output.

    Attributes:
        kl: KL between posterior and prior, reduced as configured; zero for methods without a prior.
        weights: The attention weights.
        posterior: Their distribution.
    """

    kl: Float[Tensor, ""]
    weights: Float[Tensor, "batch head query key"]
    posterior: Posterior


class BayesianAttention(nn.Module):
    """Scaled dot product attention with random weights: a chain of one layer.

    Samples in training and uses the posterior mean in evaluation. To connect the layers of a deep
    model to one belief network, convert a model whose layers call
    `F.scaled_dot_product_attention`.

    Args:
        heads: Attention heads.
        head_dim: Size of one head.
        config: Configuration of the attention method; `BeliefConfig()` by default.

    Example:
        >>> layer = BayesianAttention(heads=2, head_dim=8)
        >>> x = torch.randn(1, 2, 5, 8)
        >>> output, info = layer(x, x, x)
        >>> output.shape, info.kl.shape
        (torch.Size([1, 2, 5, 8]), torch.Size([]))
    """

    def __init__(self, heads: int, head_dim: int, config: MethodConfig | None = None) -> None:
        super().__init__()
        self.config = config or BeliefConfig()
        # Saved tensors are named "rule.": the attribute keeps its name.
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
        """Computes attention.

        Args:
            query: Queries.
            key: Keys.
            value: Values.
            mask: Boolean (`True` is kept) or additive, broadcast to batch, head, query, key.
            is_causal: Whether a query attends only to keys up to its own index.
            scale: Factor of the scores; by default one over the square root of the head size.
            sample: Whether to sample; by default only in training.
        """
        allowed, bias = read_mask(mask, query, key)
        scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        with torch.autocast(query.device.type, enabled=False):
            scores = Inputs(query, key, value, scale, allowed, bias, is_causal).scores()
            posterior = self.rule(0, scores, self.rule.upward(scores))
            sampled = self.training if sample is None else sample
            weights = (
                posterior.sample_weights(GLOBAL_NOISE) if sampled else posterior.mean_weights()
            )
            terms = posterior.kl()
        kl = scores.phi.new_zeros(())
        if terms is not None:
            kl = reduce_kl(terms, posterior.kl_mask(scores.mask, None), self.config.kl_reduction)
        output = weights.to(value.dtype) @ repeat_heads(value, weights.shape[1])
        return output, AttentionInfo(kl, weights, posterior)
