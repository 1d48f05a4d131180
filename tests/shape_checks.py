"""How annotations are held against values during tests."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any, get_args, get_type_hints

import jaxtyping
from beartype import BeartypeConf, beartype

typechecker = beartype(conf=BeartypeConf(is_pep484_tower=True))
"""Takes an int for a float, as Python itself and its type checkers do."""

with_shapes = jaxtyping.jaxtyped


def check_cheaply() -> None:
    """Makes the checks of jaxtyping cheaper, which would take a third of the time of the tests."""
    jaxtyping.jaxtyped = checked


def checked(*, typechecker: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces `jaxtyping.jaxtyped`, which spends 30 µs on a call even where no shape is annotated.

    Most functions have no shapes; beartype alone checks them in 1 µs. The checks of a function are
    built at its first call, and arguments are checked once instead of twice.
    """
    return functools.partial(_checked, typechecker)


def _checked(typechecker: Callable[..., Any], target: Any) -> Any:
    if not inspect.isclass(target):
        return _checked_function(typechecker, target)
    if dataclasses.is_dataclass(target) and target.__init__.__globals__ is not globals():
        target.__init__ = _checked_function(typechecker, target.__init__)
    return target


def _checked_function(typechecker: Callable[..., Any], function: FunctionType) -> Any:
    check: Callable[..., Any] | None = None

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal check
        if jaxtyping.config.jaxtyping_disable:
            return function(*args, **kwargs)
        if check is None:
            check = _check(typechecker, function)
        return check(*args, **kwargs)

    return call


def _check(typechecker: Callable[..., Any], function: FunctionType) -> Callable[..., Any]:
    """The function with its checks.

    Names that only type checkers import stand for any type, as jaxtyping has it.
    """
    hints = {name: _resolved(function, name) for name in function.__annotations__}
    copy = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__, copy.__annotations__ = function.__kwdefaults__, hints
    copy.__module__, copy.__qualname__ = function.__module__, function.__qualname__
    if not any(map(_has_shape, hints.values())):
        return typechecker(copy)
    if inspect.isgeneratorfunction(function):
        return with_shapes(function, typechecker=typechecker)
    return with_shapes(typechecker(copy), typechecker=None)


def _resolved(function: FunctionType, name: str) -> Any:
    def annotated() -> None: ...

    annotated.__annotations__ = {name: function.__annotations__[name]}
    try:
        return get_type_hints(annotated, function.__globals__, include_extras=True)[name]
    except Exception:  # besides `NameError`, shapes that jaxtyping refuses raise `ValueError`
        return Any


def _has_shape(hint: Any) -> bool:
    if inspect.isclass(hint):
        return issubclass(hint, jaxtyping.AbstractArray)
    return any(map(_has_shape, hint if isinstance(hint, list) else get_args(hint)))
