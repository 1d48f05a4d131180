"""An intent classifier for examples: a pretrained encoder and a linear layer, fitted in seconds."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from babn.data import intents
from babn.demo.models import MeanPooledClassifier, find_source, load
from babn.prediction.batches import encode

BATCH = 64
DECAY = 1e-3
"""Weight decay of the linear layer, which has more weights than there are texts."""


def intent_classifier(model: str = "auto") -> tuple[MeanPooledClassifier, Any]:
    """Returns a classifier of requests to a phone assistant, and its tokenizer.

    Stands for a fine-tuned model of your own on machines without a model hub. The encoder keeps its
    weights; a linear layer is fitted to the mean of its outputs on the training texts of
    `babn.data.intents`.

    Args:
        model: `"auto"` for the pretrained MiniLM if its package is installed and else an encoder
            with random weights, `"small"` for the latter, or the folder of an encoder.
    """
    train, names = intents.in_scope("train"), intents.intent_names()
    found, tokenizer = load(find_source(model), train.texts, len(names), seed=0)
    found.config.id2label = dict(enumerate(names))
    found.eval()
    parts = [train.texts[start : start + BATCH] for start in range(0, len(train), BATCH)]
    with torch.no_grad():
        batches = (encode(tokenizer, part, torch.device("cpu")) for part in parts)
        features = torch.cat([found.features(**batch) for batch in batches])
    _fit_linear(found.classifier, features, torch.tensor(train.labels))
    return found, tokenizer


def _fit_linear(layer: nn.Linear, features: Tensor, labels: Tensor) -> None:
    """Logistic regression by L-BFGS."""
    optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(layer(features), labels) + DECAY * layer.weight.square().sum()
        loss.backward()
        return float(loss.detach())

    optimizer.step(closure)
