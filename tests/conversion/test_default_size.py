"""The default adds few parameters to an encoder of a usual size, and saves little."""

from pathlib import Path
from typing import Any

import torch
import transformers as hf

import babn
from babn.attention.keys import KeyBeliefMethod

MINILM = {
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
    "vocab_size": 30522,
}


def bert(**settings: Any) -> hf.BertForSequenceClassification:
    return hf.BertForSequenceClassification(hf.BertConfig(**{**MINILM, **settings}))


def parameters(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_little_is_added_and_saved(tmp_path: Path) -> None:
    with torch.device("meta"):
        whole = parameters(bert())
    model = babn.convert(bert(vocab_size=50))  # words do not count in what is added
    added = parameters(model.babn)

    assert all(isinstance(method, KeyBeliefMethod) for method in model.babn.rules)
    assert added == 6 * (1 + (32 + 1) * 10 + 10 + 1)  # shape, and the prior's two linear layers
    assert added <= 0.01 * whole
    folder = babn.save_adapter(model, tmp_path)
    assert sum(file.stat().st_size for file in folder.iterdir()) < 300_000
