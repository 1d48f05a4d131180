"""What launching the kernels has in common: tile sizes, strides, constants."""

import math

import torch
import triton
from torch import Tensor

LN2, LOG2_E, EULER = math.log(2), 1 / math.log(2), 0.57721566490153286


def tile(n: int, m: int) -> dict[str, int]:
    """Queries and keys of one tile."""
    return {"BM": 64 if n > 32 else 16, "BN": 32 if m > 16 else 16}


def head_sizes(q: Tensor, v: Tensor) -> dict[str, int]:
    """Head sizes of queries and values, and the blocks that hold them."""
    d, dv = q.shape[-1], v.shape[-1]
    block, value_block = (max(16, triton.next_power_of_2(size)) for size in (d, dv))
    return {"D": d, "DV": dv, "BD": block, "BDV": value_block}


def broadcast_strides(x: Tensor | None, shape: torch.Size) -> tuple[int, ...]:
    """Strides with which a mask or bias is read as if it had the full shape."""
    return (0, 0, 0, 0) if x is None else x.expand(shape).stride()


def is_full(mask: Tensor | None, n: int, m: int, blocks: dict[str, int]) -> bool:
    """Whether every pair of every tile takes part, so that nothing needs to be masked."""
    return mask is None and n % blocks["BM"] == 0 and m % blocks["BN"] == 0
