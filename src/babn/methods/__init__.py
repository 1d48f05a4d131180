"""Methods of uncertainty behind one interface, for comparisons on the same data and budget."""

from babn.methods.basic import Deterministic, McDropout, WithDistance
from babn.methods.interface import Fitted, Method, Problem, TunedMethod
from babn.methods.trained_models import SOFTMAX, Models, Variant

__all__ = [
    "SOFTMAX",
    "Deterministic",
    "Fitted",
    "McDropout",
    "Method",
    "Models",
    "Problem",
    "TunedMethod",
    "Variant",
    "WithDistance",
]
