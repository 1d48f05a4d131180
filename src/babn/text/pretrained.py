"""Pretrained models with the head of a task."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from textwrap import shorten
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig
from transformers.utils import logging

from babn.errors import BabnError, ConfigError, ModelError

FAILURES = (OSError, ValueError, TypeError, RuntimeError, SafetensorError, StrictDataclassError)
"""What transformers raises for a missing or damaged model, or for settings of a wrong type."""

NOT_SETTINGS = {"architectures", "dtype", "model_type", "transformers_version"}
"""Fields of every configuration that say what the file is; models train in single precision."""


def load_pretrained(
    auto: Any, name: str, head: Mapping[str, Any], settings: Mapping[str, Any]
) -> nn.Module:
    """The model of a folder or of the hub, in single precision.

    Args:
        auto: The class of transformers that finds the architecture and adds the head.
        name: The folder, or the model's name on the hub.
        head: Fields of the model's configuration that the task sets.
        settings: Fields that the user sets.
    """
    try:
        with quiet():
            _check_settings(name, head, settings)
            config = AutoConfig.from_pretrained(name, **head, **settings)
            # The precision of the file would else become that of training.
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
    """Refuses fields that the model would ignore, or that belong to the task."""
    config = AutoConfig.from_pretrained(name)
    known = {*config.to_dict(), *config.attribute_map} - {*head, *NOT_SETTINGS}
    for field, value in settings.items():
        if field not in known:
            raise ConfigError(
                f"{field}={value!r} is not a setting of {name!r}, a model of type "
                f"{config.model_type}. Its settings are {sorted(known)}."
            )


def _check_weights(name: str, model: Any, missing: Iterable[str]) -> None:
    """Refuses a body with random weights, about which transformers would only warn."""
    body = f"{model.base_model_prefix}."
    # Models that were trained to fill in words have no pooler, which belongs to the head.
    lost = sorted(key for key in missing if key.startswith(body) and "pooler" not in key)
    if lost:
        raise ModelError(
            f"model={name!r} has no weights for {lost[0]} and {len(lost) - 1} more. Give a model "
            "whose weights belong to its config.json."
        )


def _one_line(error: Exception) -> str:
    text = shorten(str(error), 300, placeholder=" ...") or type(error).__name__
    return text if text.endswith(".") else f"{text}."


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps transformers from printing bars and reports of its own."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
