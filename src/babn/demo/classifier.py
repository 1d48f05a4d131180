"""Intent classifiers for the demo and examples: an encoder whose mean output is classified."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel
from transformers.modeling_outputs import SequenceClassifierOutput

from babn.data import intents
from babn.errors import ModelError
from babn.prediction.batches import encode
from babn.text import MINILM_COMMAND, minilm_folder, quiet, word_tokenizer

MAX_TOKENS = 64
"""Texts are truncated to this length; the longest one in `babn.data.intents` has 30 word pieces."""

BATCH = 64
DECAY = 1e-3
"""Weight decay of the linear layer, which has more weights than there are texts."""


class MeanPooledClassifier(nn.Module):
    """A transformers encoder with a linear layer over its mean-pooled outputs.

    MiniLM was trained with mean pooling, and a randomly initialised encoder learns more with it
    than with the first token.
    """

    main_input_name = "input_ids"

    def __init__(self, encoder: Any, labels: int) -> None:
        super().__init__()
        self.encoder, self.config = encoder, encoder.config
        self.dropout = nn.Dropout(0.1)
        self.classifier = nn.Linear(encoder.config.hidden_size, labels)

    def features(self, input_ids: Tensor, attention_mask: Tensor, **others: Tensor) -> Tensor:
        """Mean-pooled outputs of the encoder, the input of the linear layer."""
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, **others}
        states = self.encoder(**inputs).last_hidden_state
        seen = attention_mask.unsqueeze(-1).to(states.dtype)
        return (states * seen).sum(1) / seen.sum(1)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> SequenceClassifierOutput:
        """Logits, and the loss if there are labels."""
        kinds = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        features = self.features(input_ids, attention_mask, **kinds)
        logits = self.classifier(self.dropout(features))
        loss: Any = None if labels is None else F.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)


@dataclass(frozen=True)
class Source:
    """Where the demo's model comes from.

    Attributes:
        name: Its name in messages.
        folder: Its folder, or `None` for the small model with random weights.
        remark: A remark for the user about the choice, if any.
    """

    name: str
    folder: Path | None = None
    remark: str = ""


def find_source(model: str = "auto") -> Source:
    """The pretrained MiniLM for `auto`, if its package is installed; else a small random model."""
    if model not in ("auto", "small"):
        raise ModelError(f"model={model!r} is invalid. Give 'auto' or 'small'.")
    folder = minilm_folder() if model == "auto" else None
    if folder is not None:
        return Source("the pretrained MiniLM (all-MiniLM-L6-v2)", folder)
    remark = f"The pretrained MiniLM is not installed. For the full demo: {MINILM_COMMAND}"
    return Source("a small BERT from scratch", remark=remark if model == "auto" else "")


def load(
    source: Source, texts: tuple[str, ...], labels: int, seed: int
) -> tuple[MeanPooledClassifier, Any]:
    """The model and its tokenizer, the same for the same seed."""
    torch.manual_seed(seed)
    if source.folder is None:
        tokenizer: Any = word_tokenizer(texts)
        encoder = small_encoder(len(tokenizer))
    else:
        with quiet():
            encoder = AutoModel.from_pretrained(source.folder, local_files_only=True)
            tokenizer = AutoTokenizer.from_pretrained(source.folder, local_files_only=True)
    tokenizer.model_max_length = MAX_TOKENS
    return MeanPooledClassifier(encoder, labels), tokenizer


def small_encoder(vocabulary: int) -> BertModel:
    """A two-layer BERT with random weights, for machines without a pretrained model."""
    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=MAX_TOKENS,
    )
    return BertModel(config, add_pooling_layer=False)


def intent_classifier(model: str = "auto") -> tuple[MeanPooledClassifier, Any]:
    """Returns a classifier of requests to a phone assistant, and its tokenizer.

    A stand-in for your own fine-tuned model, without a download. The encoder keeps its weights; a
    linear layer is fitted to the mean of its outputs on the training texts of
    `babn.data.intents`.

    Args:
        model: `"auto"` for the pretrained MiniLM if its package is installed and else an encoder
            with random weights, `"small"` for the latter.
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
