"""Draws of latent counts: multinomial splits and tables of Chinese restaurants."""

import torch
from jaxtyping import Float
from torch import Tensor

CHUNK = 1 << 22
"""Customers seated at once, which bounds the memory."""


def split_counts(
    counts: Float[Tensor, "*count"],
    logits: Float[Tensor, "*item part"],
    generator: torch.Generator | None = None,
) -> Float[Tensor, "*both part"]:
    r"""Each count split over parts, multinomially with the softmax of the logits.

    One binomial draw for each part from what the parts before it left,
    $n_k \sim \mathrm{Binomial}(n - \sum_{j<k} n_j,\ p_k / \sum_{j \ge k} p_j)$.
    """
    shares = torch.softmax(logits, -1)
    rest = shares.flip(-1).cumsum(-1).flip(-1)
    chances = (shares / rest.clamp(min=torch.finfo(rest.dtype).tiny)).clamp(0, 1)
    shape = torch.broadcast_shapes(counts.shape, shares.shape[:-1])
    left, parts = counts, []
    for chance in chances[..., :-1].unbind(-1):
        left, chance = (x.expand(shape).contiguous() for x in (left, chance))
        parts.append(torch.binomial(left, chance, generator=generator))
        left = left - parts[-1]
    return torch.stack([*parts, left.expand(shape)], -1)


def draw_tables(
    customers: Float[Tensor, "..."],
    log_shape: Float[Tensor, "..."],
    generator: torch.Generator | None = None,
) -> Float[Tensor, "..."]:
    r"""Numbers of tables at which customers sit in a Chinese restaurant with a concentration $r$.

    $$z = \sum_{i=0}^{m-1} b_i, \quad b_i \sim \mathrm{Bernoulli}\Bigl(\frac{r}{r + i}\Bigr),
    \qquad P(z \mid m, r) = \frac{\Gamma(r)}{\Gamma(m + r)} |s(m, z)|\, r^z$$

    with $|s|$ the unsigned Stirling numbers of the first kind. The first customer always opens a
    table, however small $r$. Exact; the work is one uniform number for each further customer of
    the whole tensor, whatever the largest count.

    Args:
        customers: $m$, whole numbers.
        log_shape: $\log r$, of the same shape.
        generator: Where randomness comes from.
    """
    shape = log_shape.exp().flatten()
    ends = (customers.flatten() - 1).clamp(min=0).long().cumsum(0)
    tables = (customers > 0).to(log_shape.dtype).flatten()
    total = int(ends[-1]) if len(ends) else 0
    for first in range(0, total, CHUNK):
        later = torch.arange(first, min(first + CHUNK, total), device=ends.device)
        restaurant = torch.searchsorted(ends, later, right=True)
        before = torch.where(restaurant > 0, ends[restaurant - 1], 0)
        seated = (later - before + 1).to(shape.dtype)
        uniform = torch.empty_like(seated).uniform_(generator=generator)
        concentration = shape[restaurant]
        opens = uniform * (concentration + seated) < concentration
        tables.index_add_(0, restaurant, opens.to(tables.dtype))
    return tables.view_as(log_shape)
