r"""Packs attention: one byte for each number, and only the largest weights of long texts.

A layer is a block of bytes, compressed with deflate and encoded in base64. It holds planes of the
shape (head, query, kept), one byte for each number, where head 0 is the mean over all heads:

1. unless every key is kept, the low and then the high byte of the distance from one kept key to the
   next, the first counted from -1;
2. the mean weights, $w = (b / 255)^2$, accurate to 0.004 and finer for small weights;
3. std/mean, $r = \mathrm{std} \cdot b / 255$, with the layer's largest value as `std`;
4. the weights of each drawn sample, $w = \mathrm{sample} \cdot (b / 255)^2$, where `sample` is 1,
   or the largest weight if sampled weights exceed 1.

Beside it, `spread` is the standard deviation of a query's weights relative to their mean, averaged
over heads and queries: the page opens on the layer that has most of it.
"""

import base64
import zlib
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from babn.prediction.attention_maps import AttentionMap

BYTES = 5_000_000
"""Maximum number of values in a page; compressed and encoded, each takes about one byte."""

DRAWN, DRAWN_LONG = 5, 2
"""Number of attention samples in the page if all weights fit, and otherwise."""


def share(maps: Sequence[AttentionMap], budget: int = BYTES) -> tuple[int, int]:
    """Numbers of weights of each query and of samples that fit into `budget` bytes."""
    shapes = [(1 + m.mean.shape[1], *m.mean.shape[2:]) for m in maps]
    longest = max(keys for _, _, keys in shapes)
    if sum(heads * queries * keys for heads, queries, keys in shapes) * (2 + DRAWN) <= budget:
        return longest, DRAWN
    rows = sum(heads * queries for heads, queries, _ in shapes)
    return min(longest, max(1, budget // (rows * (4 + DRAWN_LONG)))), DRAWN_LONG


def with_average(values: Float[Tensor, "head query key"]) -> Float[Tensor, "heads query key"]:
    """The mean over heads, followed by every head."""
    return torch.cat([values.mean(0, keepdim=True), values]).float()


def largest(weights: Float[Tensor, "head query key"], kept: int) -> Int[Tensor, "head query kept"]:
    """The keys with the largest weights, in ascending order."""
    return weights.topk(min(kept, weights.shape[-1]), dim=-1).indices.sort(-1).values


def pack(
    keys: Int[Tensor, "head query kept"],
    count: int,
    mean: Float[Tensor, "head query kept"],
    relative_std: Float[Tensor, "head query kept"],
    samples: Sequence[Float[Tensor, "head query kept"]],
) -> dict[str, Any]:
    """A layer's scales and its block.

    Args:
        keys: The kept keys.
        count: Number of all keys.
        mean: Mean weights of the kept keys.
        relative_std: Their std/mean.
        samples: Their weights in each sample.
    """
    spread = float(relative_std.max())
    most = max([1.0, *(float(each.max()) for each in samples)])
    planes = [] if keys.shape[-1] == count else list(gaps(keys))
    planes += [quantise(mean.sqrt()), quantise(relative_std / (spread or 1.0))]
    planes += [quantise((each / most).sqrt()) for each in samples]
    block = zlib.compress(b"".join(plane.cpu().numpy().tobytes() for plane in planes), 9)
    return {
        "std": spread,
        "sample": most,
        "spread": round(float((mean * relative_std)[1:].sum(-1).mean()), 5),
        "data": base64.b64encode(block).decode(),
    }


def quantise(values: Float[Tensor, "..."]) -> UInt8[Tensor, "..."]:
    """Numbers from 0 to 1 as bytes."""
    return (values.clamp(0, 1) * 255).round().to(torch.uint8)


def gaps(
    keys: Int[Tensor, "head query kept"],
) -> tuple[UInt8[Tensor, "head query kept"], UInt8[Tensor, "head query kept"]]:
    """Low and high byte of the distance from each kept key to the one before."""
    distance = keys.diff(dim=-1, prepend=torch.full_like(keys[..., :1], -1))
    return (distance % 256).to(torch.uint8), (distance // 256).to(torch.uint8)
