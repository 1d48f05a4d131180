"""Counter-based random numbers: a pure function of the indices of row and column.

Arithmetic is on 32-bit words held in int64 tensors, so that every device gives the same bits. The
mixing steps are those of a 32-bit hash of low bias,
[hash prospector](https://github.com/skeeto/hash-prospector).
"""

from jaxtyping import Float, Int
from torch import Tensor

WORD = 0xFFFFFFFF
FIRST, SECOND, GOLDEN = 0x21F0AAAD, 0x735A2D97, 0x1E3779B1
"""Odd multipliers below 2^31, so that a product with a 32-bit word fits into 63 bits."""

STREAMS = 0x2545F491, 0x6A09E667
"""Start values of the two words of a row; rows that collide in one word differ in the other."""


def mixed(word: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """A bijection of 32-bit words in which every output bit depends on every input bit."""
    word = word ^ (word >> 16)
    word = (word * FIRST) & WORD
    word = word ^ (word >> 15)
    word = (word * SECOND) & WORD
    return word ^ (word >> 15)


def hashed(stream: int, numbers: tuple[Int[Tensor, "..."], ...]) -> Int[Tensor, "..."]:
    """Hashes several numbers, broadcast against each other, to one 32-bit word."""
    word = mixed((numbers[0] + stream) & WORD)
    for number in numbers[1:]:
        word = mixed((word * GOLDEN + (number & WORD)) & WORD)
    return word


def uniform(rows: tuple[Int[Tensor, "..."], ...], columns: Int[Tensor, "..."]) -> Tensor:
    """Uniform numbers strictly between 0 and 1, in float32, one for each row and column.

    Args:
        rows: The indices of a row.
        columns: The index of a column, broadcast against the rows.
    """
    first, second = (hashed(stream, rows) for stream in STREAMS)
    bits = mixed(mixed(((columns & WORD) * GOLDEN + first) & WORD) ^ second)
    # Midpoints of 2^23 equal intervals, which float32 represents exactly.
    value: Float[Tensor, "..."] = (bits >> 9).float().add_(0.5).mul_(2.0**-23)
    return value
