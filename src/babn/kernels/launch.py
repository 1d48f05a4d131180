"""What launching the kernels has in common: settings, tiles, strides."""

import math
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

LN2, LOG2_E, EULER = math.log(2), 1 / math.log(2), 0.57721566490153286

FIXED, BARE, LIFTED = 0, 1, 2
NO_PRIOR, CONTEXTUAL, CONSTANT, ROWWISE = 0, 1, 2, 3


class Settings(NamedTuple):
    """The numbers and choices of a call."""

    scale: float
    rho: float
    fixed_k: float
    sigma: float
    beta: float
    alpha: float
    normalized: bool
    sample: bool
    truncated: bool
    own_moment: bool
    with_kl: bool
    call: int

    @property
    def shape(self) -> int:
        """Where the Weibull shape comes from."""
        if self.fixed_k > 0:
            return FIXED
        return LIFTED if self.rho > 0 else BARE

    def priors(self, prior: Tensor | None, mask: Tensor | None) -> int:
        """The kind of prior."""
        if not self.with_kl:
            return NO_PRIOR
        if prior is None:
            return CONSTANT
        rowwise = mask is not None and (mask.shape[1] > 1 or mask.shape[2] > 1)
        return ROWWISE if rowwise else CONTEXTUAL

    def numbers(self) -> dict[str, float]:
        """What kernels compute with; logarithms to base 2."""
        return {
            "factor": self.scale * LOG2_E,
            "rho_ln2": self.rho * LN2,
            "fixed_k": max(self.fixed_k, 1e-4),
            "sigma_ln2": self.sigma * LN2,
            "log_beta": math.log2(self.beta),
            "alpha_constant": self.alpha,
        }

    def options(self, prior: Tensor | None, mask: Tensor | None) -> dict[str, Any]:
        """What kernels are compiled for."""
        return {
            "SHAPE": self.shape,
            "LIFT": self.sigma > 0,
            "NORMALIZED": self.normalized,
            "SAMPLE": self.sample,
            "TRUNCATED": self.truncated,
            "OWN_MOMENT": self.own_moment,
            "PRIORS": self.priors(prior, mask),
        }


class Tile(NamedTuple):
    """Queries and keys of a tile, and the warps that work on it."""

    queries: int
    keys: int
    warps: int


TILES = {
    "forward": Tile(64, 32, 4),
    "rows": Tile(64, 16, 4),
    "columns": Tile(64, 64, 4),
    "softmax": Tile(64, 64, 4),
}
"""For each kernel the largest tile that fits its registers with heads of 64."""


def tile_options(
    kernel: str, q: Tensor, m: int, mask: Tensor | None, bias: Tensor | None
) -> dict[str, Any]:
    """The tile of a kernel, smaller for short texts, and what has to be done in it."""
    n, largest = q.shape[2], TILES[kernel]
    queries = min(largest.queries, max(16, triton.next_power_of_2(n)))
    keys = min(largest.keys, max(16, triton.next_power_of_2(m)))
    return {
        "BM": queries,
        "BN": keys,
        "MASKED": mask is not None,
        "BIASED": bias is not None,
        "IEEE": q.dtype == torch.float32,
        "FULL": mask is None and n % queries == 0 and m % keys == 0,
        # Large heads leave fewer registers for pairs.
        "num_warps": 2 * largest.warps if q.shape[-1] > 64 else largest.warps,
    }


def head_sizes(q: Tensor, v: Tensor) -> dict[str, int]:
    """Head sizes of queries and values, and the blocks that hold them."""
    d, dv = q.shape[-1], v.shape[-1]
    block, value_block = (max(16, triton.next_power_of_2(size)) for size in (d, dv))
    return {"D": d, "DV": dv, "BD": block, "BDV": value_block}


class Pairs(NamedTuple):
    """Optional tensors of query-key pairs in the form that kernels take.

    Absent ones are any tensor with strides of zero, which is never read.
    """

    mask: Tensor
    mask_strides: tuple[int, ...]
    bias: Tensor
    bias_strides: tuple[int, ...]

    @classmethod
    def of(cls, q: Tensor, m: int, mask: Tensor | None, bias: Tensor | None) -> "Pairs":
        """Mask and bias as if they had the full shape."""
        full = (*q.shape[:3], m)
        nothing = q, (0, 0, 0, 0)
        masks = nothing if mask is None else (mask.view(torch.uint8), mask.expand(full).stride())
        biases = nothing if bias is None else (bias, bias.expand(full).stride())
        return cls(*masks, *biases)


class Lift(NamedTuple):
    """The two maps of the upward path inside one tensor."""

    first: Tensor
    second: Tensor
    strides: tuple[int, ...]

    @classmethod
    def of(cls, lift: Tensor | None, q: Tensor, m: int) -> "Lift":
        """Two maps lie side by side, over keys or over heads; one map serves as both."""
        if lift is None:
            return cls(q, q, (0, 0, 0))
        a, b, c, _ = lift.stride()
        offset = 0
        if lift.shape[1] == 2 * q.shape[1]:
            offset = q.shape[1] * b
        elif lift.shape[3] == 2 * m:
            offset = m
        return cls(lift, lift.view(-1)[offset:], (a, b, c))
