"""Sizes at which kernels change how they work, and what memory they take; needs no Triton."""

LARGEST_PART = 3 * 2**27
"""Bytes of query-key pairs above which backward takes the batch in parts."""

LARGEST_PART_OF_MAPS = 3 * 2**26
"""The same with maps over heads, whose results are among them."""

ROWS_OF_A_PART = 16
"""Rows over which one warp sums the gradient of the prior; the rest is summed afterwards."""

NUMBERS = 2
"""What backward has for each pair: its weight, and the gradient of its score."""


def examples_at_a_time(batch: int, pairs: int, maps: int) -> int:
    """How many examples backward takes at a time; also for sizes that are symbols.

    Args:
        batch: The number of examples.
        pairs: The bytes of one number for each pair of an example.
        maps: Maps over heads, whose results backward has as well.
    """
    largest = LARGEST_PART_OF_MAPS if maps else LARGEST_PART
    parts = -(-batch * pairs * (NUMBERS + maps) // largest)
    return -(-batch // min(batch, parts)) if parts > 1 else batch
