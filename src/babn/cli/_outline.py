"""Models built from a configuration alone, with weights that take no memory."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from babn.plugins import find_model_class


def outline(config: Any) -> nn.Module:
    """The model that a transformers configuration describes, with random weights."""
    import transformers

    model_class = find_model_class((getattr(config, "architectures", None) or [""])[0])
    with _without_weights():
        model = model_class(config) if model_class else transformers.AutoModel.from_config(config)
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = nn.Parameter(_light(name, parameter), False)
    return model.eval()


@contextmanager
def _without_weights() -> Iterator[None]:
    """Creates parameters on the meta device inside the block; buffers stay real."""
    register = nn.Module.register_parameter

    def register_shape(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        shape = None if parameter is None else nn.Parameter(parameter.to("meta"), False)
        register(module, name, shape)

    nn.Module.register_parameter = register_shape  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def _light(name: str, shape: Tensor) -> Tensor:
    """Zeros for a bias, ones for a scale; for a matrix, overlapping windows of random numbers."""
    if shape.ndim < 2:
        return torch.full(shape.shape, float(name != "bias"), dtype=shape.dtype)
    length = sum(shape.shape) - shape.ndim + 1
    numbers = torch.randn(length, generator=torch.Generator().manual_seed(len(name)))
    numbers = (numbers / math.sqrt(shape.shape[-1])).to(shape.dtype)
    return numbers.as_strided(shape.shape, [1] * shape.ndim)
