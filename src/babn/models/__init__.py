"""Attention models from before transformers, for tasks of two texts, as models of transformers.

Importing this package makes them known to transformers' `Auto` classes.
"""

from transformers import AutoConfig, AutoModelForMultipleChoice, AutoModelForSequenceClassification

from babn.models.decomposable import (
    DecomposableConfig,
    DecomposableForMultipleChoice,
    DecomposableForSequenceClassification,
)
from babn.models.esim import EsimConfig, EsimForMultipleChoice, EsimForSequenceClassification
from babn.models.vectors import WordVectors, read_vectors

__all__ = [
    "DecomposableConfig",
    "DecomposableForMultipleChoice",
    "DecomposableForSequenceClassification",
    "EsimConfig",
    "EsimForMultipleChoice",
    "EsimForSequenceClassification",
    "WordVectors",
    "read_vectors",
]

for _config, _classifier, _chooser in (
    (DecomposableConfig, DecomposableForSequenceClassification, DecomposableForMultipleChoice),
    (EsimConfig, EsimForSequenceClassification, EsimForMultipleChoice),
):
    AutoConfig.register(_config.model_type, _config, exist_ok=True)
    AutoModelForSequenceClassification.register(_config, _classifier, exist_ok=True)
    AutoModelForMultipleChoice.register(_config, _chooser, exist_ok=True)
