"""The count of code lines in CONTRIBUTING.md."""

from code_lines import code_lines

SOURCE = '''"""Module.

Several lines.
"""

import os  # comments beside code do not hide it

NAMES = (
    "one",  # a string that is a value
    """two""",
)
"""A field's docstring."""


# A comment.
def double(x: int) -> int:
    """Doubles."""
    return (
        2 * x
    )
'''


def test_blank_lines_comments_and_docstrings_do_not_count() -> None:
    assert code_lines(SOURCE) == 9
