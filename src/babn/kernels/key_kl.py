"""The KL of variables of keys from their prior, in one kernel in each direction.

Computes what `babn.attention.keys.KeyKL` defines. A program has one head of keys of one example;
the calls of a forward pass are examples of one launch.
"""

import math
from typing import Any

import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import Function

from babn.kernels.launch import Launcher, block
from babn.kernels.posterior import LARGEST_LOG
from babn.kernels.special import (
    EULER,
    LN2,
    LOG2_E,
    digamma,
    log_gamma,
    log_moment,
    log_moment_slope,
)
from babn.kernels.tiles import BOTTOM, LOWEST, keys_seen

KEYS, WARPS = 1024, 4
"""Keys of a block, and warps of a program."""


@triton.jit
def kl_forward(
    NUMBERS, SEEN, KL, SLOPES, key_heads, m, seen_batch, log_beta,
    BLOCK_N: tl.constexpr, HAS_MASK: tl.constexpr, HAS_OWN_MOMENT: tl.constexpr,
):  # fmt: skip
    """The KL of each variable.

    SLOPES gets its derivatives in 1/k and log alpha, and alpha divided by the sum over keys.
    """
    log_beta = tl.cast(log_beta, tl.float32)
    plane = tl.program_id(0).to(tl.int64)
    size = tl.num_programs(0).to(tl.int64) * m
    SEEN += plane // key_heads * seen_batch
    NUMBERS += plane * m
    KL += plane * m
    SLOPES += plane * m
    top = tl.full([BLOCK_N], BOTTOM, tl.float32)
    total = tl.zeros([BLOCK_N], tl.float32)
    count = tl.zeros([BLOCK_N], tl.float32)
    for start in range(0, m, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        seen = keys_seen(SEEN, keys, m, 1, HAS_MASK)
        logits = tl.load(NUMBERS + size + keys, mask=seen, other=LOWEST)
        higher = tl.maximum(top, logits)
        total = total * tl.exp(top - higher) + tl.exp(logits - higher)
        count += seen.to(tl.float32)
        top = higher
    highest, seen_keys = tl.max(top, 0), tl.maximum(tl.sum(count, 0), 1.0)
    log_mean = tl.log2(tl.sum(total * tl.exp(top - highest), 0) / seen_keys)
    for start in range(0, m, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        seen = keys_seen(SEEN, keys, m, 1, HAS_MASK)
        t = tl.load(NUMBERS + keys, mask=seen, other=1.0)
        logits = tl.load(NUMBERS + size + keys, mask=seen, other=0.0)
        y = 1.0 / (1.0 + t)
        log_y = tl.log2(y)
        log_lam = -log_moment(t, y, log_y, HAS_OWN_MOMENT)
        slope = log_moment_slope(t, y, log_y, HAS_OWN_MOMENT)
        log_expected = log_lam + log_gamma(t, y, log_y) + log_beta
        expected = tl.exp2(tl.minimum(log_expected, LARGEST_LOG))
        dt = expected * (digamma(t, y, log_y) - slope) - 1.0 / t
        log_alpha = tl.where(seen, (logits - highest) * LOG2_E - log_mean, 0.0)
        alpha = tl.exp2(log_alpha)
        y = 1.0 / (1.0 + alpha)
        log_y = tl.log2(y)
        cross = EULER * t - LN2 * (log_lam + log_beta)
        logs = log_gamma(alpha, y, log_y) - log_alpha - tl.log2(t)
        kl = alpha * cross + expected + LN2 * logs - (EULER + 1.0)
        dt += alpha * (EULER + slope)
        dlog = alpha * (cross + digamma(alpha, y, log_y)) - 1.0
        inside = keys < m
        tl.store(KL + keys, tl.where(seen, kl, 0.0), mask=inside)
        tl.store(SLOPES + keys, tl.where(seen, dt, 0.0), mask=inside)
        tl.store(SLOPES + size + keys, tl.where(seen, dlog, 0.0), mask=inside)
        tl.store(SLOPES + 2 * size + keys, tl.where(seen, alpha / seen_keys, 0.0), mask=inside)


@triton.jit
def kl_backward(SLOPES, DKL, DNUMBERS, m, BLOCK_N: tl.constexpr):
    """Gradients of scales and logits."""
    plane = tl.program_id(0).to(tl.int64)
    size = tl.num_programs(0).to(tl.int64) * m
    SLOPES += plane * m
    DKL += plane * m
    DNUMBERS += plane * m
    total = tl.zeros([BLOCK_N], tl.float32)
    for start in range(0, m, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        dkl = tl.load(DKL + keys, mask=keys < m, other=0.0)
        total += dkl * tl.load(SLOPES + size + keys, mask=keys < m, other=0.0)
    common = tl.sum(total, 0)
    for start in range(0, m, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        inside = keys < m
        dkl = tl.load(DKL + keys, mask=inside, other=0.0)
        dlog = dkl * tl.load(SLOPES + size + keys, mask=inside, other=0.0)
        share = tl.load(SLOPES + 2 * size + keys, mask=inside, other=0.0)
        dt = dkl * tl.load(SLOPES + keys, mask=inside, other=0.0)
        tl.store(DNUMBERS + keys, dt, mask=inside)
        tl.store(DNUMBERS + size + keys, dlog - share * common, mask=inside)


launch_forward, launch_backward = Launcher(kl_forward), Launcher(kl_backward)


def options_of(m: int) -> dict[str, Any]:
    """Constants and compile options of both kernels, for `m` keys."""
    return {"BLOCK_N": min(KEYS, block(m)), "num_warps": WARPS}


class ElementwiseKL(Function):
    """The KL of each variable.

    Takes scales of the posterior and logits of the prior's shapes, the keys that any query sees,
    whether the mean factor is that of the truncated noise, and the rate of the prior.
    """

    @staticmethod
    def forward(
        ctx: Any, numbers: Tensor, seen: Tensor | None, own_moment: bool, beta: float
    ) -> Tensor:
        """Computes the KL and its slopes."""
        _, batch, heads, _, m = numbers.shape
        numbers, shown = numbers.contiguous(), numbers if seen is None else seen.contiguous()
        kl, slopes = numbers.new_empty(batch, heads, 1, m), numbers.new_empty(3, batch, heads, 1, m)
        flags = {"HAS_MASK": seen is not None, "HAS_OWN_MOMENT": own_moment}
        launch_forward(
            (batch * heads, 1),
            (numbers, shown, kl, slopes),
            (heads, m, 0 if shown.shape[0] == 1 else m, math.log2(beta)),
            flags | options_of(m),
        )
        ctx.save_for_backward(slopes)
        return kl

    @staticmethod
    def backward(ctx: Any, dkl: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the numbers."""
        [slopes] = ctx.saved_tensors
        _, batch, heads, _, m = slopes.shape
        dnumbers = slopes.new_empty(2, batch, heads, 1, m)
        tensors = slopes, dkl.contiguous(), dnumbers
        launch_backward((batch * heads, 1), tensors, (m,), options_of(m))
        return dnumbers, None, None, None
