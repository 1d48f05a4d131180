"""Inputs of the dry run, built from a transformers configuration if the user gives none."""

import inspect as python_inspect
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from babn.devices import device_of
from babn.errors import ExampleInputsError

TOKENS, DECODER_TOKENS, REGIONS = 9, 5, 7

PRECISIONS = torch.float16, torch.bfloat16, torch.float32, torch.float64

PREMISE = 4
"""Number of tokens before the separator, in models that read pairs of texts."""


def as_call(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments from a tensor, a sequence or a mapping."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if isinstance(inputs, list | tuple):
        return tuple(inputs), {}
    return (inputs,), {}


def without_padding(
    call: tuple[tuple[Any, ...], dict[str, Any]],
) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """The same arguments without padding in the masks; an empty list if there was no padding."""
    args, kwargs = call
    masks = {
        name: torch.ones_like(value)
        for name, value in kwargs.items()
        if name.endswith("attention_mask") and isinstance(value, Tensor) and value.ndim == 2
    }
    hidden = any(not bool(kwargs[name].all()) for name in masks)
    return [(args, {**kwargs, **masks})] if hidden else []


def example_call(model: nn.Module, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of the dry run: those given, or built for a transformers model."""
    if inputs is not None:
        return as_call(inputs)
    config = getattr(model, "config", None)
    if config is None or not hasattr(model, "main_input_name"):
        raise ExampleInputsError(
            f"example_inputs=None, and {type(model).__name__} is not a transformers model, so its "
            "inputs are unknown. Pass example_inputs: a tensor, a tuple of positional arguments or "
            "a dictionary of keyword arguments, as small as you like."
        )
    accepted = set(python_inspect.signature(model.forward).parameters)
    tensors = _example_tensors(config, accepted).items()
    made = {name: _placed(value, model) for name, value in tensors if name in accepted}
    if is_multiple_choice(model):
        made = {name: value.unsqueeze(1).repeat(1, 2, 1) for name, value in made.items()}
    needed = str(model.main_input_name)
    if needed not in made:
        raise ExampleInputsError(
            f"No example can be built for {type(model).__name__}, whose main input is {needed!r}. "
            "Pass example_inputs: a dictionary of keyword arguments, as small as you like."
        )
    return (), _without_alternatives(made, needed)


def is_multiple_choice(model: nn.Module) -> bool:
    """Whether inputs have a dimension of choices after the batch dimension."""
    return type(model).__name__.endswith("ForMultipleChoice")


def _placed(value: Tensor, model: nn.Module) -> Tensor:
    """The tensor on the model's device and, if it is floating-point, in its dtype."""
    value = value.to(device_of(model))
    dtypes = [p.dtype for p in model.parameters() if p.dtype in PRECISIONS]
    return value.to(dtypes[0]) if dtypes and value.is_floating_point() else value


def _example_tensors(config: Any, accepted: set[str]) -> dict[str, Tensor]:
    """Small inputs of every kind that the configuration has a size for; masks only beside texts."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    vocabulary = getattr(text, "vocab_size", None) or getattr(config, "vocab_size", None)
    made: dict[str, Tensor] = {}
    if vocabulary and "input_ids" in accepted:
        made |= _tokens("input_ids", "attention_mask", TOKENS, vocabulary)
        separator = getattr(text, "sep_token_id", None)
        # The default separator may be outside the vocabulary.
        if separator is not None and separator < vocabulary:
            made["input_ids"][:, PREMISE] = separator
    pairs = getattr(config, "is_encoder_decoder", False)
    if vocabulary and pairs and "decoder_input_ids" in accepted:
        made |= _tokens("decoder_input_ids", "decoder_attention_mask", DECODER_TOKENS, vocabulary)
    vision = getattr(config, "vision_config", config)
    if size := getattr(vision, "image_size", None):
        height, width = size if isinstance(size, list | tuple) else (size, size)
        channels = getattr(vision, "num_channels", 3)
        made["pixel_values"] = _ramp(1, channels, height, width).repeat(2, 1, 1, 1)
    if region := getattr(config, "region_size", None):
        made["regions"] = _ramp(2, REGIONS, region)
    if mel := getattr(config, "num_mel_bins", None):
        frames = 2 * getattr(config, "max_source_positions", 50)
        made["input_features"] = _ramp(1, mel, frames).repeat(2, 1, 1)
    if hasattr(config, "conv_kernel"):
        made["input_values"] = torch.sin(torch.arange(4000.0)).repeat(2, 1)
    return made


def _ramp(*shape: int) -> Tensor:
    """Numbers that grow evenly from -1 to 1."""
    return torch.linspace(-1, 1, math.prod(shape)).reshape(shape)


def _tokens(ids: str, mask: str, length: int, vocabulary: int) -> dict[str, Tensor]:
    """Two sequences of tokens, the second padded on the right."""
    tokens = (torch.arange(2 * length).reshape(2, length) * 7 + 3) % vocabulary
    seen = torch.ones(2, length, dtype=torch.long)
    seen[1, length - 2 :] = 0
    return {ids: tokens, mask: seen}


def _without_alternatives(made: dict[str, Tensor], needed: str) -> dict[str, Tensor]:
    """Removes inputs that are alternatives to the main one."""
    audio = {"input_features", "input_values"} & set(made)
    if needed in audio:
        return {k: v for k, v in made.items() if k == needed or k.startswith("decoder_input")}
    return {k: v for k, v in made.items() if k not in audio}
