"""Measures of calibration and uncertainty, from probabilities or from samples."""

from importlib import import_module
from typing import Any

from babn.metrics.accuracy_nll_brier import accuracy, brier, confidence_and_correct, nll
from babn.metrics.calibration_error import Reliability, adaptive_ece, ece, mce, reliability
from babn.metrics.pavpu_counts import Pavpu, pavpu
from babn.metrics.ranking import RiskCoverage, aurc, auroc, fpr95, risk_coverage

__all__ = [
    "Pavpu",
    "Reliability",
    "RiskCoverage",
    "accuracy",
    "adaptive_ece",
    "aurc",
    "auroc",
    "brier",
    "confidence_and_correct",
    "ece",
    "fpr95",
    "mce",
    "nll",
    "pavpu",
    "reliability",
    "risk_coverage",
]


def __dir__() -> list[str]:
    """All public names, including the module that needs torchmetrics."""
    return [*__all__, "streaming"]


def __getattr__(name: str) -> Any:
    """Imports the module that needs torchmetrics on first access."""
    if name == "streaming":
        return import_module("babn.metrics.streaming")
    raise AttributeError(f"module 'babn.metrics' has no attribute {name!r}")
