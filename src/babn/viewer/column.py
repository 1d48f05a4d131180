"""One model's view of one text, as plain values for the page."""

from typing import Any

import torch
from torch import nn

from babn.prediction.modes import evaluating
from babn.prediction.predict import Prediction, predict
from babn.prediction.sampling import posterior_mean
from babn.viewer.inputs import MOST_TOKENS, Example, Text, prepare
from babn.viewer.maps import chains
from babn.viewer.packing import BYTES
from babn.viewer.words import Tokenizer

DIGITS = 5


def column(
    model: nn.Module,
    tokenizer: Tokenizer,
    text: Text,
    *,
    title: str = "",
    samples: int = 20,
    seed: int = 0,
    budget: int = BYTES,
    most: int = MOST_TOKENS,
) -> dict[str, Any]:
    """What a column of the page shows."""
    example = prepare(model, tokenizer, text, most)
    found, drawn = chains(model, example.batch, seed, budget)
    return {
        "title": title,
        "text": list(example.text) if isinstance(example.text, tuple) else [example.text],
        "words": [word.plain for word in example.words],
        "output": [word.plain for word in example.output],
        "chains": found,
        "drawn": drawn,
        "answer": answer(model, example, samples, seed) if classifies(model, example) else None,
    }


def classifies(model: nn.Module, example: Example) -> bool:
    """Whether the model gives one row of logits for the whole text."""
    with torch.no_grad(), evaluating(model), posterior_mean(model):
        logits = getattr(model(**example.batch), "logits", None)
    return torch.is_tensor(logits) and logits.ndim == 2


def answer(model: nn.Module, example: Example, samples: int, seed: int) -> dict[str, Any]:
    """The probabilities of the classes under each sample, and what follows from them."""
    config = getattr(model, "config", None)
    # Without a padding token some models take one text at a time.
    memory = 0.0 if getattr(config, "pad_token_id", None) is None else None
    found = predict(model, example.batch, samples, seed, memory=memory)
    names = getattr(config, "id2label", None) or {}
    return {
        "labels": [str(names.get(i, f"class {i}")) for i in range(found.probs.shape[-1])],
        "kind": found.activation,
        **_numbers(found),
    }


def _numbers(found: Prediction) -> dict[str, Any]:
    """Mean and spread, and for probabilities the entropies."""
    values = {"samples": found.sample_probs[:, 0], "mean": found.probs[0], "std": found.std[0]}
    if found.activation != "identity":
        values["entropy"] = found.entropy[0]
        values["mutual_information"] = found.mutual_information[0]
    return {name: _rounded(x.double().tolist()) for name, x in values.items()}


def _rounded(values: Any) -> Any:
    return [_rounded(v) for v in values] if isinstance(values, list) else round(values, DIGITS)
