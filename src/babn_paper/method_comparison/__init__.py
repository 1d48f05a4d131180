"""Rival methods of uncertainty behind one interface, compared on the same data.

`method_catalogue.py` lists the methods.
"""

from babn_paper.method_comparison.basic_methods import (
    Deterministic,
    Ensemble,
    McDropout,
    WithDistance,
)
from babn_paper.method_comparison.interface import Fitted, Method, TunedMethod
from babn_paper.method_comparison.trained_models import SOFTMAX, Models, Problem, Variant

__all__ = [
    "SOFTMAX",
    "Deterministic",
    "Ensemble",
    "Fitted",
    "McDropout",
    "Method",
    "Models",
    "Problem",
    "TunedMethod",
    "Variant",
    "WithDistance",
]
