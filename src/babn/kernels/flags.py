"""What the kernels for noise over pairs are compiled for: tiles, flags and compile options."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from torch import Tensor

from babn.distributions.kl import EULER
from babn.kernels.launch import CACHED_LAUNCHES, block, precision
from babn.kernels.settings import (
    LARGE_RHO,
    MaskType,
    Precision,
    PriorType,
    Settings,
    ShapeType,
    mask_type,
    numbers_of,
    settings_of,
)


@dataclass(frozen=True)
class Flags:
    """What an attention kernel is compiled for: one argument, the names as in flash-attention.

    Attributes:
        HEAD_DIM: Size of a head of queries and keys.
        VALUE_DIM: Size of a head of values.
        BLOCK_D: The block that holds a head of queries and keys.
        BLOCK_DV: The block that holds a head of values.
        BLOCK_M: Queries of a tile.
        BLOCK_N: Keys of a tile.
        EVEN_MN: Whether queries and keys fill whole tiles.
        MASK_TYPE: `MaskType`.
        HAS_BIAS: Whether a bias is added to the scores.
        PRECISION: `Precision`.
        SHAPE_TYPE: `ShapeType`.
        HAS_SCALE: Whether the upward path enters the scale.
        NUM_LOGITS: Logits of the upward path for each pair: none, those of shape or scale, or both.
        IS_POSITIVE: Whether softplus has been applied to the logits.
        IS_NORMALIZED: Whether scores are normalised over keys.
        IS_SAMPLE: Whether to draw a sample.
        IS_TRUNCATED: Whether the noise is truncated.
        HAS_OWN_MOMENT: Whether the mean factor is that of the truncated noise.
        PRIOR_TYPE: `PriorType`.
        LARGE_K: Whether to assume first that all k are at least 1.
        IS_COMPLETE: Whether backward needs no gradient through the normaliser of scores.
    """

    HEAD_DIM: int
    VALUE_DIM: int
    BLOCK_D: int
    BLOCK_DV: int
    BLOCK_M: int
    BLOCK_N: int
    EVEN_MN: bool
    MASK_TYPE: MaskType
    HAS_BIAS: bool
    PRECISION: Precision
    SHAPE_TYPE: ShapeType = "scores"
    HAS_SCALE: bool = False
    NUM_LOGITS: int = 0
    IS_POSITIVE: bool = False
    IS_NORMALIZED: bool = True
    IS_SAMPLE: bool = False
    IS_TRUNCATED: bool = False
    HAS_OWN_MOMENT: bool = False
    PRIOR_TYPE: PriorType = "none"
    LARGE_K: bool = False
    IS_COMPLETE: bool = False


class Method(NamedTuple):
    """What a call computes.

    Attributes:
        settings: Its settings.
        has_network: Whether the prior is an MLP.
        num_logits: Logits of the upward path for each pair.
        is_positive: Whether softplus has been applied to them.
    """

    settings: Settings
    has_network: bool
    num_logits: int
    is_positive: bool

    def flags(self, mask: MaskType) -> dict[str, Any]:
        """The flags that follow."""
        settings, prior = self.settings, self.settings.prior(self.has_network, mask)
        return {
            "SHAPE_TYPE": settings.shape,
            "HAS_SCALE": settings.sigma > 0,
            "NUM_LOGITS": self.num_logits,
            "IS_POSITIVE": self.is_positive,
            "IS_NORMALIZED": settings.normalized,
            "IS_SAMPLE": settings.sample,
            "IS_TRUNCATED": settings.truncated,
            "HAS_OWN_MOMENT": settings.own_moment,
            "PRIOR_TYPE": prior,
            "LARGE_K": settings.fixed_k >= 1 or settings.rho >= LARGE_RHO,
            "IS_COMPLETE": settings.complete(prior),
        }


class Tile(NamedTuple):
    """Queries and keys of a tile, and how a kernel works on it.

    Attributes:
        queries: Queries of the tile.
        keys: Keys of the tile.
        warps: Warps of a program.
        registers: Limit of the registers of a thread, so that more programs run at a time; 0 for
            none. On an H200, limits reduce the time of the forward kernel from .49 to .45 ms, over
            heads from .77 to .70, and of rows without logits from .30 to .29
            (`tools/results/kernel-tricks.json`).
    """

    queries: int
    keys: int
    warps: int
    registers: int = 0


TILES = {
    "forward": Tile(64, 32, 4, registers=128),
    "forward over heads": Tile(64, 32, 4, registers=168),
    "rows": Tile(64, 16, 4),
    "rows of long texts": Tile(64, 32, 4),
    "rows without logits": Tile(64, 32, 4, registers=168),
    "columns": Tile(64, 64, 4),
}
"""For each kernel the fastest tile with heads of 64; `tools/kernel_tricks.py` times others."""

LONG = 129
"""Keys from which a text is long, with heads of 64 and without mask, bias and maps over heads.

At 512 keys the kernel for rows takes 1.12 ms with the tile of long texts, and 1.58 with the other
one. In other calls the larger tile spills registers."""

LARGE_HEAD = 1024
"""Bytes of a head from which on tiles are smaller, to fit the shared memory of small GPUs."""


class Options(NamedTuple):
    """Constants and compile options of the kernels of a call, and its numbers as they take them."""

    forward: dict[str, Any]
    rows: dict[str, Any]
    columns: dict[str, Any]
    numbers: tuple[float, ...]
    forward_numbers: tuple[float, ...]


def call_options(
    q: Tensor, v: Tensor, m: int, mask: Tensor | None, bias: Tensor | None,
    numbers: Sequence[float], *method: Any,
) -> Options:  # fmt: skip
    """The options of a call by one look-up.

    Args:
        q: Queries.
        v: Values.
        m: Number of keys.
        mask: The mask.
        bias: The bias.
        numbers: Those of `Settings`.
        *method: The fields of `Method` after the settings.
    """
    _, _, n, size = q.shape
    return _call_options(
        tuple(numbers), *method, n, m, size, v.shape[3], q.element_size(), mask_type(mask),
        bias is not None, precision(q.dtype),
    )  # fmt: skip


@lru_cache(CACHED_LAUNCHES)
def _call_options(
    numbers: tuple[float, ...], has_network: bool, logits: int, is_positive: bool, *sizes: Any
) -> Options:
    settings = settings_of(numbers)
    method, for_kernels = Method(settings, has_network, logits, is_positive), numbers_of(settings)
    _, keys, size, value_size, _, mask, has_bias, _ = sizes
    is_plain = mask == "none" and not has_bias and not is_positive
    is_long = is_plain and keys >= LONG and block(max(size, value_size)) == 64
    rows = "rows of long texts" if is_long else "rows"
    return Options(
        options_of("forward over heads" if is_positive else "forward", method, *sizes),
        options_of(rows if logits else "rows without logits", method, *sizes),
        options_of("columns", None, *sizes),
        for_kernels,
        (*for_kernels, math.lgamma(settings.alpha) - EULER - 1),
    )


def options_of(
    kernel: str, method: Method | None, n: int, m: int, size: int, value_size: int, width: int,
    mask: MaskType, has_bias: bool, products: Precision,
) -> dict[str, Any]:  # fmt: skip
    """Flags and compile options of a kernel; short texts get smaller tiles.

    Args:
        kernel: Its name in `TILES`.
        method: What it computes, unless that makes no difference.
        n: Number of queries.
        m: Number of keys.
        size: Size of a head of queries and keys.
        value_size: Size of a head of values.
        width: Bytes of each number of the queries.
        mask: The kind of mask.
        has_bias: Whether there is a bias.
        products: The matmul precision.
    """
    largest, widest = TILES[kernel], block(max(size, value_size))
    parts = 2 if widest * width >= LARGE_HEAD else 1
    queries = min(largest.queries // parts, block(n))
    keys = min(max(16, largest.keys // parts), block(m))
    options = {
        # Heads of 256 spill 320 bytes of a thread's registers with 4 warps, and 32 with 8.
        "num_warps": 2 * largest.warps if widest > 64 and parts == 1 else largest.warps,
    }
    if largest.registers and widest <= 64:
        options["maxnreg"] = largest.registers
    found = Flags(
        HEAD_DIM=size,
        VALUE_DIM=value_size,
        BLOCK_D=block(size),
        BLOCK_DV=block(value_size),
        BLOCK_M=queries,
        BLOCK_N=keys,
        EVEN_MN=n % queries == 0 and m % keys == 0,
        MASK_TYPE=mask,
        HAS_BIAS=has_bias,
        PRECISION=products,
        **({} if method is None else method.flags(mask)),
    )
    return {"C": found, **options}
