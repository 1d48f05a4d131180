"""The test run checks shapes everywhere but in the kernels."""

import pkgutil

import pytest

import babn
import babn_paper


def test_shapes_are_checked_everywhere_but_in_kernels(pytestconfig: pytest.Config) -> None:
    *checked, _ = pytestconfig.getoption("--jaxtyping-packages").split(",")
    modules = {
        f"{package.__name__}.{module.name}"
        for package in (babn, babn_paper)
        for module in pkgutil.iter_modules(package.__path__)
    }
    assert modules - set(checked) == {"babn.kernels"}
