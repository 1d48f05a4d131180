"""The polynomials in the sources are those that the script derives."""

import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.polynomial import Polynomial
from small_kernels import applied, short_softplus_at

from babn.kernels import special

SCRIPT = Path(__file__).parents[2] / "tools" / "fit_polynomials.py"


@pytest.fixture(scope="module")
def fits() -> dict[str, Polynomial]:
    found: dict[str, Polynomial] = runpy.run_path(str(SCRIPT))["fits"]()
    return found


NAMES = [
    "stirling_rest",
    "stirling_rest_slope",
    "moment_rest",
    "moment_rest_slope",
    "log_gamma_1p",
    "digamma_1p",
    "moment",
    "inverse_moment",
    "moment_slope",
    "gamma_1p",
]


@pytest.mark.parametrize("name", NAMES)
def test_kernels_have_the_fitted_polynomials(
    name: str, fits: dict[str, Polynomial], device: torch.device
) -> None:
    x = torch.linspace(0, 1, 1001, device=device)
    at = x.double().cpu().numpy()
    expected = fits[name](2 * at - 1 if name.startswith("moment_rest") else at)
    np.testing.assert_allclose(applied(getattr(special, name), x), expected, rtol=0, atol=1e-6)


def test_softplus_has_the_fitted_polynomial(
    fits: dict[str, Polynomial], device: torch.device
) -> None:
    x = torch.linspace(-10, 0, 1001, device=device)
    expected = fits["softplus"](np.exp(x.double().cpu().numpy()))
    np.testing.assert_allclose(applied(short_softplus_at, x), expected, rtol=1e-6, atol=0)
