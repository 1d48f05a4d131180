"""Kernels that do nothing but call one function of the package, and what they return."""

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from babn.kernels.posterior import inverse, log_exponential, row_keys, uniform_bits
from babn.kernels.special import (
    digamma,
    log2,
    log_gamma,
    log_moment,
    log_moment_slope,
    softplus,
    softplus_and_slope,
)

BLOCK = 1024


@triton.jit
def log_gamma_at(k):
    t, y = inverse(k)
    return log_gamma(t, y, log2(y))


@triton.jit
def digamma_at(k):
    t, y = inverse(k)
    return digamma(t, y, log2(y))


@triton.jit
def log_moment_at(k):
    t, y = inverse(k)
    return log_moment(t, y, log2(y), True)


@triton.jit
def log_moment_slope_at(k):
    t, y = inverse(k)
    return log_moment_slope(t, y, log2(y), True)


@triton.jit
def softplus_at(x):
    value, _ = softplus_and_slope(x, True)
    return value


@triton.jit
def coarse_softplus_at(x):
    value, _ = softplus_and_slope(x, False)
    return value


@triton.jit
def short_softplus_at(x):
    return softplus(x, False)


@triton.jit
def apply_kernel(X, OUT, count, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < count, other=1)
    # The sum unwraps what the interpreter makes of a constant minus a tensor: a constant.
    tl.store(OUT + at, tl.zeros([BLOCK], tl.float32) + FUNCTION(x), mask=at < count)


def applied(function: Any, x: Tensor) -> Tensor:
    """A jit function at every number of `x`, in double precision."""
    out = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    apply_kernel[(triton.cdiv(x.numel(), BLOCK),)](x, out, x.numel(), function, BLOCK)
    return out.double().cpu()


@triton.jit
def draw_kernel(
    SEEDS, BITS, NOISE, heads, n, m, rows_per_seed,
    TRUNCATED: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    plane = tl.program_id(1)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    batch, head = plane // heads, plane % heads
    first, second = row_keys(SEEDS, batch, head, heads, rows, rows_per_seed)
    for start in range(0, m, BN):
        keys = start + tl.arange(0, BN)
        inside = (rows < n)[:, None] & (keys < m)[None, :]
        at = (plane * n + rows)[:, None] * m + keys[None, :]
        bits = uniform_bits(first, second, keys)
        tl.store(BITS + at, bits.to(tl.int64), mask=inside)
        tl.store(NOISE + at, log_exponential(bits, TRUNCATED), mask=inside)


@triton.jit
def mix_kernel(FIRST, SECOND, OUT, BM: tl.constexpr, BN: tl.constexpr):
    rows, keys = tl.arange(0, BM), tl.arange(0, BN)
    bits = uniform_bits(tl.load(FIRST + rows), tl.load(SECOND + rows), keys)
    tl.store(OUT + rows[:, None] * BN + keys[None, :], bits.to(tl.int64))


def mixed(first: Tensor, second: Tensor, m: int) -> Tensor:
    """The bits of rows with these two keys; their number and that of keys are powers of two."""
    bits = torch.empty(len(first), m, dtype=torch.int64, device=first.device)
    mix_kernel[(1,)](first, second, bits, len(first), m)
    return bits


@triton.jit
def exact_noise_at(bits):
    return log_exponential(bits.to(tl.uint32), False)


@triton.jit
def truncated_noise_at(bits):
    return log_exponential(bits.to(tl.uint32), True)


def draws(
    seeds: Tensor, shape: tuple[int, int, int, int], truncated: bool = True
) -> tuple[Tensor, Tensor]:
    """The bits of every pair of a call, and its noise to base e in double precision."""
    batch, heads, n, m = shape
    bits = torch.empty(shape, dtype=torch.int64, device=seeds.device)
    noise = torch.empty(shape, dtype=torch.float32, device=seeds.device)
    draw_kernel[(triton.cdiv(n, 64), batch * heads)](
        seeds, bits, noise, heads, n, m, batch // len(seeds), truncated, 64, 64
    )
    return bits, noise.double() * math.log(2)
