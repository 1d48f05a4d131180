"""One attention call, from queries, keys and values to outputs, whatever route it came by."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from babn.attention.masking import Mask, normalize
from babn.attention.rule import Scores
from babn.conversion.hooks import check_not_reentrant
from babn.conversion.passes import current_pass
from babn.conversion.recorder import recorder
from babn.conversion.state import Site

MASKED_BELOW = -5e3
"""Additive masks use numbers from -1e4 to minus infinity; real biases stay far above."""

SITE = "_babn_site"


@dataclass(frozen=True)
class Inputs:
    """The arguments of an attention call in one form.

    Attributes:
        mask: The pairs that take part.
        bias: Added to the scaled scores.
        softcap: Bound of a tanh on the scores (Gemma 2).
        dropout: Probability with which the model drops attention weights in this call.
        windowed: Whether the model says that queries see a sliding window.
        crossed: Whether keys come from another sequence than queries.
    """

    query: Float[Tensor, "batch head query dim"]
    key: Float[Tensor, "batch keyhead key dim"]
    value: Float[Tensor, "batch keyhead key valuedim"]
    scale: float
    mask: Mask | None = None
    bias: Float[Tensor, "#batch #head #query key"] | None = None
    softcap: float | None = None
    dropout: float = 0.0
    windowed: bool = False
    crossed: bool = False

    def scores(self) -> Scores:
        """The scores in float32, or float64 for a float64 model."""
        dtype = torch.promote_types(self.query.dtype, torch.float32)
        key = repeat_heads(self.key, self.query.shape[1]).to(dtype)
        phi = self.query.to(dtype) @ key.transpose(-1, -2) * self.scale
        if self.softcap is not None:
            phi = self.softcap * torch.tanh(phi / self.softcap)
        if self.bias is not None:
            phi = phi + self.bias
        return Scores(phi, self.mask, self.key)


def attend(
    module: nn.Module, route: str, inputs: Inputs
) -> tuple[Float[Tensor, "batch head query dim"], Float[Tensor, "batch head query key"]]:
    """Output and weights of an attention call made by `module`."""
    with torch.autocast(inputs.query.device.type, enabled=False):
        scores = inputs.scores()
    weights, dropout = attention_weights(module, route, scores, inputs)
    weights = weights.to(inputs.value.dtype)
    weights = F.dropout(weights, dropout) if dropout else weights
    return weights @ repeat_heads(inputs.value, weights.shape[1]), weights


def attention_weights(
    module: nn.Module, route: str, scores: Scores, inputs: Inputs
) -> tuple[Float[Tensor, "batch head query key"], float]:
    """Weights by the module's rule, and how much of the model's dropout to apply to them.

    Modules that take no part in any chain keep their softmax.
    """
    site: Site | None = getattr(module, SITE, None)
    with torch.autocast(scores.phi.device.type, enabled=False):
        if recorder.calls is not None:
            recorder.record(module, route, scores, inputs.windowed, inputs.crossed)
        if site is None or recorder.calls is not None:
            return normalize(scores.phi, scores.mask), inputs.dropout
        forward_pass = current_pass(site)
        if not torch.compiler.is_compiling():
            check_not_reentrant(forward_pass)
        keeps_dropout = forward_pass.state.config.attention_dropout
        return forward_pass.weights(site, scores), inputs.dropout if keeps_dropout else 0.0


def repeat_heads(x: Float[Tensor, "batch keyhead key dim"], heads: int) -> Tensor:
    """Keys or values repeated for grouped queries."""
    groups = heads // x.shape[1]
    return x if groups == 1 else x.repeat_interleave(groups, dim=1)


def read_mask(
    mask: Tensor | None, query: Tensor, key: Tensor, causal: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Splits a boolean (`True` takes part) or additive mask into pairs and bias, 4-dimensional.

    Args:
        mask: The mask as given to the call; one made for a longer cache is cut.
        query: The queries.
        key: The keys.
        causal: Whether a query sees only keys up to its own index.
    """
    queries, keys, bias = query.shape[-2], key.shape[-2], None
    if mask is not None:
        mask = mask.to(query.device)
        mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)[..., :keys]
        if mask.dtype != torch.bool:
            bias = mask.masked_fill(mask <= MASKED_BELOW, 0.0)
            mask = mask > MASKED_BELOW
    if causal:
        earlier = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril()
        mask = earlier[None, None] if mask is None else mask & earlier
    return mask, bias
