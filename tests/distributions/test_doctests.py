"""The examples in the docstrings of the maths run, and every public class has one."""

import doctest
import importlib
import inspect
import pkgutil

import pytest

import babn.attention
import babn.distributions

MODULES = [
    f"{package.__name__}.{module.name}"
    for package in (babn.attention, babn.distributions)
    for module in pkgutil.iter_modules(package.__path__)
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_every_public_class_has_an_example(name: str) -> None:
    module = importlib.import_module(name)
    classes = [x for _, x in inspect.getmembers(module, inspect.isclass) if x.__module__ == name]
    missing = [x.__name__ for x in classes if x.__name__[0] != "_" and ">>>" not in x.__doc__]
    assert not missing
