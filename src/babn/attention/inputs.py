"""The arguments of an attention call in one form, whatever function or module received them."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from babn.attention.masking import Mask


@dataclass(frozen=True)
class Scores:
    r"""The scores $\Phi = Q K^T / \sqrt{d} + \text{bias}$ of one attention call.

    Args:
        phi: The scores, in float32 or float64; finite at masked keys.
        mask: The pairs that take part, or `None` for all.
        key: The keys, from which the prior is computed.
        causal: Whether a query sees only keys up to its own index, without a mask that says so.

    Example:
        >>> Scores(torch.zeros(1, 1, 3, 5), None, torch.zeros(1, 1, 5, 8)).phi.shape
        torch.Size([1, 1, 3, 5])
    """

    phi: Float[Tensor, "batch head query key"]
    mask: Mask | None
    key: Float[Tensor, "batch keyhead key dim"]
    causal: bool = False


@dataclass
class Inputs:
    r"""Queries, keys and values of one attention call, and how scores are computed from them.

    $$\Phi = \mathrm{softcap}(\text{scale}\cdot Q K^T) + \text{bias}$$

    Treat it as immutable: a frozen dataclass would take several times as long to construct.

    Args:
        query: Queries.
        key: Keys; queries may be grouped over fewer heads of keys.
        value: Values.
        scale: Factor of the dot products.
        mask: The pairs that take part.
        bias: Added to the scaled scores.
        causal: Whether a query also sees only keys up to its own index; takes no memory, unlike a
            mask.
        softcap: Bound of a tanh on the scores (Gemma 2).
        dropout: Probability with which the model drops attention weights in this call.
        windowed: Whether queries see a sliding window, according to the model.
        crossed: Whether keys come from another sequence than queries.
        needs_weights: Whether the caller needs the weights and not only the output.
        phi: The scores, if the model has computed them itself.

    Example:
        >>> x = torch.ones(1, 1, 2, 4)
        >>> Inputs(x, x, x, scale=0.5).scores().phi
        tensor([[[[2., 2.],
                  [2., 2.]]]])
    """

    query: Float[Tensor, "batch head query dim"]
    key: Float[Tensor, "batch keyhead key dim"]
    value: Float[Tensor, "batch keyhead key valuedim"]
    scale: float
    mask: Mask | None = None
    bias: Float[Tensor, "#batch #head #query key"] | None = None
    causal: bool = False
    softcap: float | None = None
    dropout: float = 0.0
    windowed: bool = False
    crossed: bool = False
    needs_weights: bool = False
    phi: Float[Tensor, "batch head query key"] | None = None

    @property
    def pairs(self) -> tuple[int, int, int, int]:
        """Batch, heads, queries and keys."""
        return (*self.query.shape[:3], self.key.shape[2])

    def without_scores(self) -> Scores:
        """Keys and mask, with placeholder scores that have shape and type but take no memory."""
        dtype = torch.promote_types(self.query.dtype, torch.float32)
        nothing = torch.empty((), dtype=dtype, device=self.query.device)
        return Scores(nothing.expand(self.pairs), self.mask, self.key, self.causal)

    def with_causal_mask(self) -> "Inputs":
        """The call with the causal mask merged into its mask."""
        if not self.causal:
            return self
        queries, keys = self.pairs[-2:]
        earlier = torch.ones(queries, keys, dtype=torch.bool, device=self.query.device).tril()
        mask = earlier[None, None] if self.mask is None else self.mask & earlier
        return replace(self, mask=mask, causal=False)

    def with_bias(self, more: Float[Tensor, "#batch #head #query key"]) -> "Inputs":
        """The call with `more` added to its bias, and its mask merged into the bias."""
        bias = (more if self.bias is None else more + self.bias).to(self.query.dtype)
        mask = self.with_causal_mask().mask
        if mask is not None:
            bias = bias.masked_fill(~mask, -torch.inf)
        return replace(self, bias=bias, mask=None, causal=False)

    def scores(self) -> Scores:
        """The scores in float32, or float64 for a float64 model."""
        if self.phi is not None:
            return Scores(self.phi, self.mask, self.key)
        dtype = torch.promote_types(self.query.dtype, torch.float32)
        key = repeat_heads(self.key, self.query.shape[1]).to(dtype)
        phi = self.query.to(dtype) @ key.transpose(-1, -2) * self.scale
        if self.softcap is not None:
            phi = self.softcap * torch.tanh(phi / self.softcap)
        if self.bias is not None:
            phi = phi + self.bias
        return Scores(phi, self.with_causal_mask().mask, self.key)


def repeat_heads(x: Float[Tensor, "batch keyhead key dim"], heads: int) -> Tensor:
    """Repeats the heads of keys or values for grouped queries."""
    groups = heads // x.shape[1]
    return x if groups == 1 else x.repeat_interleave(groups, dim=1)
