"""Runs a model in float64, in which rounding does not hide differences between runs."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from babn.conversion.dry_run import unchanged

LARGEST = 2**30
"""Larger models are not cast, to save memory."""


def can_be_widened(model: nn.Module) -> bool:
    """Whether a model may be cast to float64: it is not too large, and its devices have it."""
    parameters = list(model.parameters())
    wide = all(parameter.device.type != "mps" for parameter in parameters)
    return wide and sum(parameter.numel() for parameter in parameters) <= LARGEST


@contextmanager
def full_precision(model: nn.Module) -> Iterator[None]:
    """Runs a model in float64 without autocast, whatever torch rounds products of float32 to."""
    devices = {parameter.device.type for parameter in model.parameters()} | {"cpu"}
    with unchanged(model), ExitStack() as entered:
        for device in devices - {"meta"}:
            entered.enter_context(torch.autocast(device, enabled=False))
        _widen_weights(model)
        yield


def widened(values: Any) -> Any:
    """Arguments with floating-point tensors in float64."""
    return pytree.tree_map_only(
        Tensor, lambda x: x.double() if x.is_floating_point() else x, values
    )


def _widen_weights(model: nn.Module) -> None:
    wide: dict[int, Tensor] = {}  # keeps tied weights tied
    for module in model.modules():
        tables: list[dict[str, Any]] = [module._parameters, module._buffers]
        for table in tables:
            for name, x in table.items():
                if type(x) in (Tensor, nn.Parameter) and x.is_floating_point():
                    made = wide.setdefault(id(x), x.detach().double())
                    table[name] = nn.Parameter(made) if isinstance(x, nn.Parameter) else made
