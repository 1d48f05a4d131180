"""Inspects a model from its configuration alone, for `babn inspect`."""

import logging
import math
from collections.abc import Callable
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn

import babn
from babn.attention.belief import BeliefConfig
from babn.attention.method import MethodConfig
from babn.cli._errors import CommandError
from babn.conversion.convert import Inspection
from babn.errors import ConfigError, import_extra, one_line
from babn.persistence import parse_description
from babn.plugins import find_model_class, plugins

READERS: dict[Any, tuple[Callable[[str], Any], str]] = {
    bool: (lambda text: {"true": True, "false": False}[text.lower()], "true or false"),
    int: (int, "a whole number"),
    float: (float, "a number"),
}
"""Parsers of settings by type, each with a description of valid values."""


def inspection(model: str, method: str | None, settings: list[str]) -> Inspection:
    """The result of `babn.inspect` for the model in a folder or on the hub."""
    config = read_config(model)
    described = getattr(config, "babn", None)
    if described is None:
        return babn.inspect(outline(config), config=method_config(method or "belief", settings))
    if method or settings:
        raise CommandError(
            f"{model} is already converted: --method and --set do not apply. Leave them out."
        )
    name = (config.architectures or [type(config).__name__])[0]
    made, chains, kept, _ = parse_description(described, Path(model) / "config.json")
    return Inspection(name, made, chains, kept, {}, True)


def read_config(model: str) -> Any:
    """The configuration of a model, from a folder or from the hub."""
    need = "babn inspect needs transformers"
    transformers = import_extra("transformers", need, "transformers")
    plugins("babn.models")  # makes them known to transformers
    # The hub logs every retry, which would hide the error message.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        return transformers.AutoConfig.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise CommandError(f"{model} cannot be read: {one_line(error)}") from error


def outline(config: Any) -> nn.Module:
    """The model that a transformers configuration describes, with random weights."""
    import transformers
    from accelerate import init_empty_weights

    model_class = find_model_class((getattr(config, "architectures", None) or [""])[0])
    with init_empty_weights():
        model = model_class(config) if model_class else transformers.AutoModel.from_config(config)
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = nn.Parameter(_light(name, parameter), False)
    return model.eval()


def _light(name: str, shape: Tensor) -> Tensor:
    """Zeros for a bias, ones for a scale; for a matrix, overlapping windows of random numbers."""
    if shape.ndim < 2:
        return torch.full(shape.shape, float(name != "bias"), dtype=shape.dtype)
    length = sum(shape.shape) - shape.ndim + 1
    numbers = torch.randn(length, generator=torch.Generator().manual_seed(len(name)))
    numbers = (numbers / math.sqrt(shape.shape[-1])).to(shape.dtype)
    return numbers.as_strided(shape.shape, [1] * shape.ndim)


def method_config(method: str, settings: list[str]) -> MethodConfig:
    """The configuration of an attention method from its name and a list of NAME=VALUE."""
    values: dict[str, Any] = {}
    kind = MethodConfig.known.get(method)
    known = {field.name: field for field in fields(kind)} if kind else {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise CommandError(f"--set {setting} is invalid. Write --set NAME=VALUE.")
        values[name] = parse(known[name], text) if name in known else text
    if kind is BeliefConfig:
        values = {"noise_over": "keys", **values}
    return MethodConfig.from_dict({"rule": method, **values})


def parse(field: Field, text: str) -> Any:
    """Parses a setting as the type of its field."""
    if get_args(field.type):
        return text
    read, expected = READERS[field.type]
    try:
        return read(text)
    except (KeyError, ValueError):
        raise ConfigError(f"{field.name}={text!r} is invalid. Give {expected}.") from None
