"""The test run checks shapes everywhere but in the kernels."""

import pkgutil

import pytest
import torch
from beartype.roar import BeartypeCallHintViolation

import babn
import babn_paper
from babn.evaluation.decisions import risk_bound
from babn.prediction.generation import mean_over


def test_shapes_are_checked_everywhere_but_in_kernels(pytestconfig: pytest.Config) -> None:
    *checked, _ = pytestconfig.getoption("--jaxtyping-packages").split(",")
    modules = {
        f"{package.__name__}.{module.name}"
        for package in (babn, babn_paper)
        for module in pkgutil.iter_modules(package.__path__)
    }
    assert modules - set(checked) == {"babn.kernels"}


def test_wrong_shapes_and_types_are_refused() -> None:
    values, seen = torch.ones(2, 4, 5), torch.ones(2, 4, 5, dtype=torch.bool)
    mean_over(values, seen)
    for broken in (values[0], values[..., 1:], values.long()):
        with pytest.raises(BeartypeCallHintViolation):
            mean_over(broken, seen)
    with pytest.raises(BeartypeCallHintViolation, match="errors='1'"):
        risk_bound("1", 2, 0.1)


@pytest.mark.usefixtures("as_installed")
def test_checks_can_be_switched_off() -> None:
    with pytest.raises(TypeError, match="not supported between"):
        risk_bound("1", 2, 0.1)
