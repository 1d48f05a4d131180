"""Evaluation: stored predictions, temperature scaling, ensembles, comparisons and reports."""

from babn.evaluation.comparison import Comparison, Difference, Estimate
from babn.evaluation.predictions import Evaluation, ensemble
from babn.evaluation.resampling import compare
from babn.evaluation.tables import Table
from babn.evaluation.temperature_scaling import calibrate, fit_temperature

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
