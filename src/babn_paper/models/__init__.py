"""Attention models that transformers does not have, as models of transformers.

Two classify pairs of texts, one translates, and one answers questions about images. Importing this
package registers them with the `Auto` classes of transformers.
"""

from transformers import (
    AutoConfig,
    AutoModelForMultipleChoice,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForVisualQuestionAnswering,
)

from babn_paper.models.decomposable import (
    DecomposableConfig,
    DecomposableForMultipleChoice,
    DecomposableForSequenceClassification,
)
from babn_paper.models.esim import EsimConfig, EsimForMultipleChoice, EsimForSequenceClassification
from babn_paper.models.mcan import McanForQuestionAnswering
from babn_paper.models.mcan_parts import McanConfig
from babn_paper.models.translate import Translations, translate
from babn_paper.models.translation import TranslationModel
from babn_paper.models.translation_parts import TranslationConfig
from babn_paper.models.vectors import WordVectors, read_vectors

__all__ = [
    "DecomposableConfig",
    "DecomposableForMultipleChoice",
    "DecomposableForSequenceClassification",
    "EsimConfig",
    "EsimForMultipleChoice",
    "EsimForSequenceClassification",
    "McanConfig",
    "McanForQuestionAnswering",
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

AutoConfig.register(McanConfig.model_type, McanConfig, exist_ok=True)
AutoModelForVisualQuestionAnswering.register(McanConfig, McanForQuestionAnswering, exist_ok=True)
