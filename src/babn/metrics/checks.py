"""Refusing what no metric can be computed from."""

from numbers import Integral, Real
from typing import Any, NoReturn

from jaxtyping import Float
from torch import Tensor

from babn.errors import MetricInputError


def numbers(values: Float[Tensor, "*shape"], name: str) -> Float[Tensor, "*shape"]:
    """The values in float64, refused if there are none or if one is NaN."""
    if not isinstance(values, Tensor) or not values.dtype.is_floating_point:
        refuse(f"{name} is {described(values)}", "Give a tensor of floats.")
    if not values.numel():
        refuse(f"{name} is empty, with the shape {tuple(values.shape)}", "Give an example or more.")
    if values.isnan().any():
        refuse(f"{name} holds nan", "Find out where it comes from; no metric can be computed.")
    return values.detach().double()


def check_whole(value: int, name: str) -> int:
    """A whole number from 1 on."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        refuse(f"{name}={value!r} is not possible", "Give a whole number from 1 on.")
    return int(value)


def check_share(value: float, name: str, whole: bool) -> float:
    """A number above 0 and below 1, or up to 1 if the `whole` is possible."""
    possible = isinstance(value, Real) and not isinstance(value, bool)
    if not possible or not (0 < value < 1 or (whole and value == 1)):
        end = "up to 1" if whole else "below 1"
        refuse(f"{name}={value!r} is not possible", f"Give a number above 0 and {end}.")
    return float(value)


def described(value: Any) -> str:
    """What an argument of the wrong kind is."""
    return f"a tensor of {value.dtype}" if isinstance(value, Tensor) else repr(value)


def refuse(problem: str, remedy: str) -> NoReturn:
    """Raises the error for an argument that cannot be used."""
    raise MetricInputError(f"{problem}. {remedy}")
