"""Judging models: saved answers, temperature, ensembles, comparisons and reports."""

from babn.evaluation.answers import Evaluation
from babn.evaluation.calibration import calibrate, fit_temperature
from babn.evaluation.compare import compare
from babn.evaluation.comparison import Comparison, Difference, Estimate
from babn.evaluation.ensemble import ensemble
from babn.evaluation.tables import Table

__all__ = [
    "Comparison",
    "Difference",
    "Estimate",
    "Evaluation",
    "Table",
    "calibrate",
    "compare",
    "ensemble",
    "fit_temperature",
]
