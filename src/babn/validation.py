"""Validators of settings; their errors name the argument, the value and the remedy."""

from dataclasses import fields
from numbers import Integral, Real
from typing import Any, Literal, get_args, get_origin, get_type_hints

from babn.errors import BabnError, ConfigError

LARGEST = (2 - 2**-23) * 2.0**127
"""The largest float32. Without torch, so that commands validate options before they import it."""

MOST = 2**31 - 1
"""The largest count."""


def check_choices(config: Any) -> None:
    """Validates the fields of a data class that are annotated as `Literal`."""
    hints = get_type_hints(type(config))
    for field in fields(config):
        value, hint = getattr(config, field.name), hints[field.name]
        if get_origin(hint) is Literal and value not in get_args(hint):
            raise ConfigError(
                f"{field.name}={value!r} is invalid. Choose one of {list(get_args(hint))}."
            )


def check_at_least(name: str, value: Any, least: float, strictly: bool = False) -> None:
    """Validates that `value` is a finite number of at least `least`."""
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not (value > least if strictly else value >= least) or value > LARGEST:
        bound = "greater than" if strictly else "at least"
        raise ConfigError(f"{name}={shown(value)} is invalid. Give a number {bound} {least:g}.")


def check_count(name: str, value: Any, error: type[BabnError] = ConfigError) -> None:
    """Validates that `value` is a positive integer."""
    if not isinstance(value, Integral) or isinstance(value, bool) or not 1 <= int(value) <= MOST:
        raise error(f"{name}={shown(value)} is invalid. Give a whole number from 1 to {MOST}.")


def check_share(
    name: str, value: Any, *, up_to_one: bool = False, error: type[BabnError] = ConfigError
) -> None:
    """Validates that `value` is a number above 0 and below 1, or up to 1."""
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not (0 < value < 1 or (up_to_one and value == 1)):
        end = "up to 1" if up_to_one else "below 1"
        raise error(f"{name}={shown(value)} is invalid. Give a number above 0 and {end}.")


def shown(value: Any) -> str:
    """The repr of a value for an error message, truncated if long."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:80]}..."
