"""Random numbers that depend on where they belong and on nothing else.

Arithmetic is on 32-bit words held in int64 tensors, so that every device gives the same bits. The
mixing steps are those of a published 32-bit hash of low bias (hash prospector).
"""

from jaxtyping import Float, Int
from torch import Tensor

WORD = 0xFFFFFFFF
FIRST, SECOND, GOLDEN = 0x21F0AAAD, 0x735A2D97, 0x1E3779B1
"""Odd multipliers below 2^31, so that a product with a 32-bit word fits into 63 bits."""

STREAMS = 0x2545F491, 0x6A09E667
"""Where the two words of a row begin; rows that share one of them by chance differ in the other."""


def mixed(word: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """A bijection of 32-bit words under which every bit depends on all others."""
    word = word ^ (word >> 16)
    word = (word * FIRST) & WORD
    word = word ^ (word >> 15)
    word = (word * SECOND) & WORD
    return word ^ (word >> 15)


def hashed(stream: int, names: tuple[Int[Tensor, "..."], ...]) -> Int[Tensor, "..."]:
    """One 32-bit word from several numbers, which broadcast against each other."""
    word = mixed((names[0] + stream) & WORD)
    for name in names[1:]:
        word = mixed((word * GOLDEN + (name & WORD)) & WORD)
    return word


def uniform(rows: tuple[Int[Tensor, "..."], ...], columns: Int[Tensor, "..."]) -> Tensor:
    """Numbers strictly between 0 and 1, in float32, one for each row and column.

    Args:
        rows: The numbers that name a row.
        columns: The number that names a column, broadcast against the rows.
    """
    first, second = (hashed(stream, rows) for stream in STREAMS)
    bits = mixed(mixed(((columns & WORD) * GOLDEN + first) & WORD) ^ second)
    # The middles of 2^23 equal intervals, which float32 holds exactly.
    value: Float[Tensor, "..."] = (bits >> 9).float().add_(0.5).mul_(2.0**-23)
    return value
