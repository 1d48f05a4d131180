"""Attention models from before transformers, as models of transformers.

Two are for tasks of two texts and one translates.

Importing this package makes them known to transformers' `Auto` classes.
"""

from transformers import (
    AutoConfig,
    AutoModelForMultipleChoice,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
)

from babn.models.decomposable import (
    DecomposableConfig,
    DecomposableForMultipleChoice,
    DecomposableForSequenceClassification,
)
from babn.models.esim import EsimConfig, EsimForMultipleChoice, EsimForSequenceClassification
from babn.models.translate import Translations, translate
from babn.models.translation import TranslationModel
from babn.models.translation_config import TranslationConfig
from babn.models.vectors import WordVectors, read_vectors

__all__ = [
    "DecomposableConfig",
    "DecomposableForMultipleChoice",
    "DecomposableForSequenceClassification",
    "EsimConfig",
    "EsimForMultipleChoice",
    "EsimForSequenceClassification",
    "TranslationConfig",
    "TranslationModel",
    "Translations",
    "WordVectors",
    "read_vectors",
    "translate",
]

for _config, _classifier, _chooser in (
    (DecomposableConfig, DecomposableForSequenceClassification, DecomposableForMultipleChoice),
    (EsimConfig, EsimForSequenceClassification, EsimForMultipleChoice),
):
    AutoConfig.register(_config.model_type, _config, exist_ok=True)
    AutoModelForSequenceClassification.register(_config, _classifier, exist_ok=True)
    AutoModelForMultipleChoice.register(_config, _chooser, exist_ok=True)

AutoConfig.register(TranslationConfig.model_type, TranslationConfig, exist_ok=True)
AutoModelForSeq2SeqLM.register(TranslationConfig, TranslationModel, exist_ok=True)
