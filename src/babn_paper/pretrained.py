"""Pretrained models with a task head, and sizes of ALBERT models with random weights."""

from collections.abc import Iterable, Mapping
from textwrap import shorten
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig

from babn.errors import BabnError, ConfigError, ModelError
from babn.text import MINILM_COMMAND, minilm_folder, quiet

FAILURES = (OSError, ValueError, TypeError, RuntimeError, SafetensorError, StrictDataclassError)
"""Raised by transformers for missing or damaged models, and for settings of a wrong type."""

NOT_SETTINGS = {"architectures", "dtype", "model_type", "transformers_version"}
"""Configuration fields that describe the file; models train in single precision."""


ALBERT_BASE = {
    "vocab_size": 30_000,
    "embedding_size": 128,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
"""The sizes of ALBERT-base."""


def small_sizes(vocabulary: int, length: int) -> dict[str, Any]:
    """Sizes of a two-layer ALBERT with shared weights."""
    return {
        "vocab_size": vocabulary,
        "embedding_size": 32,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "max_position_embeddings": length,
    }


def model_source(name: str) -> str:
    """The folder or hub name of a model; `"minilm"` is an installed package."""
    if name != "minilm":
        return name
    folder = minilm_folder()
    if folder is None:
        raise ModelError(f"model='minilm' is not installed. Install it: {MINILM_COMMAND}")
    return str(folder)


def load_pretrained(
    auto: Any, name: str, head: Mapping[str, Any], settings: Mapping[str, Any]
) -> nn.Module:
    """Loads a model from a folder or the hub, in single precision.

    Args:
        auto: The auto class of transformers that selects the architecture and adds the head.
        name: The folder, or the model's name on the hub.
        head: Fields of the model's configuration that the task sets.
        settings: Fields that the user sets.
    """
    try:
        with quiet():
            _check_settings(name, head, settings)
            config = AutoConfig.from_pretrained(name, **head, **settings)
            # Otherwise the precision of the file becomes that of training.
            model, found = auto.from_pretrained(
                name, config=config, dtype=torch.float32, output_loading_info=True
            )
    except BabnError:
        raise
    except FAILURES as error:
        raise ModelError(
            f"model={name!r} cannot be loaded: {_one_line(error)} Give the folder of a model "
            "that save_pretrained wrote, or its name on the hub."
        ) from error
    _check_weights(name, model, found["missing_keys"])
    return model


def _check_settings(name: str, head: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Validates that the model has the fields, and that the task does not set them."""
    config = AutoConfig.from_pretrained(name)
    known = {*config.to_dict(), *config.attribute_map} - {*head, *NOT_SETTINGS}
    for field, value in settings.items():
        if field not in known:
            raise ConfigError(
                f"{field}={value!r} is not a setting of {name!r}, a model of type "
                f"{config.model_type}. Its settings are {sorted(known)}."
            )


def _check_weights(name: str, model: Any, missing: Iterable[str]) -> None:
    """Raises if the body has random weights, about which transformers only warns."""
    body = f"{model.base_model_prefix}."
    # Masked language models have no pooler, which counts as part of the head.
    lost = sorted(key for key in missing if key.startswith(body) and "pooler" not in key)
    if lost:
        raise ModelError(
            f"model={name!r} has no weights for {lost[0]} and {len(lost) - 1} more. Give a model "
            "whose weights belong to its config.json."
        )


def _one_line(error: Exception) -> str:
    text = shorten(str(error), 300, placeholder=" ...") or type(error).__name__
    return text if text.endswith(".") else f"{text}."
