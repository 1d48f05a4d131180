"""The test run checks shapes everywhere but in the kernels."""

import pkgutil

import pytest

import babn


def test_shapes_are_checked_everywhere_but_in_kernels(pytestconfig: pytest.Config) -> None:
    *checked, _ = pytestconfig.getoption("--jaxtyping-packages").split(",")
    modules = {f"babn.{module.name}" for module in pkgutil.iter_modules(babn.__path__)}
    assert modules - set(checked) == {"babn.kernels"}
