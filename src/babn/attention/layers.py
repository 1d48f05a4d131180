"""The `layers` setting: which attention layers of a model use a method."""

import re
from collections.abc import Sequence
from numbers import Integral

from babn.errors import ConfigError

ALL = "all"

COUNTED = re.compile(r"(first|last):([1-9]\d*)")
NUMBER = re.compile(r"-?\d+")
MISSPELT = re.compile(r"(first|last)\W?\d+")
GLOB = re.compile(r"[\w.*?\[\]!-]*[A-Za-z_*?][\w.*?\[\]!-]*")

FORMS = '"all", "first:2", "last:4", "0,2,5" or [0, 2, 5], or names of modules as "*.self_attn"'


def normalized_layers(layers: str | Sequence[int]) -> str:
    """Validates a choice of layers and writes it as one string of terms separated by commas.

    Args:
        layers: One or several of `"all"`, `"first:N"`, `"last:N"`, a number from 0 on (negative
            ones count from the end) and a glob on names of modules; or a list of numbers.

    Example:
        >>> normalized_layers([0, 2, 5])
        '0,2,5'
    """
    if not isinstance(layers, str):
        listed = isinstance(layers, Sequence) and len(layers) > 0
        if not listed or not all(_is_number(entry) for entry in layers):
            raise _impossible(layers)
        layers = ",".join(str(int(entry)) for entry in layers)
    terms = terms_of(layers)
    if not terms or not all(_is_term(term) for term in terms):
        raise _impossible(layers)
    return ",".join(terms)


def terms_of(layers: str) -> list[str]:
    """The terms of a choice; a layer is chosen if any of them matches it."""
    return [term.strip() for term in layers.split(",")]


def _is_term(term: str) -> bool:
    if MISSPELT.fullmatch(term) and not COUNTED.fullmatch(term):
        return False
    return any(form.fullmatch(term) for form in (COUNTED, NUMBER, GLOB))


def _is_number(entry: object) -> bool:
    return isinstance(entry, Integral) and not isinstance(entry, bool)


def _impossible(layers: object) -> ConfigError:
    return ConfigError(f"layers={layers!r} is not possible. Give {FORMS}.")
