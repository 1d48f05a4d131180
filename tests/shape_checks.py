"""The type checker that holds annotations against values during tests."""

from beartype import BeartypeConf, beartype

typechecker = beartype(conf=BeartypeConf(is_pep484_tower=True))
"""Takes an int for a float, as Python itself and its type checkers do."""
