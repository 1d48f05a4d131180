"""Compares the outputs of two runs of a model."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from babn.conversion.full_precision import can_be_widened

FULL, HALF = 1e-4, 5e-2
"""Relative tolerance for rounding in float32, and in coarser or unknown precision."""


def tolerance(model: nn.Module, keys: list[Tensor], output: Any) -> float:
    """The relative tolerance for rounding in the outputs of a model.

    Args:
        model: The model.
        keys: The keys of its attention calls.
        output: Its output.
    """
    parameters = list(model.parameters())
    made = {x.dtype for x in numbers(output).values() if x.is_floating_point()}
    computed = {x.dtype for x in (*parameters, *keys)}
    coarse = (made | computed) - {torch.float32, torch.float64}
    devices = {p.device.type for p in parameters} | {"cpu"}
    cast = any(torch.is_autocast_enabled(device) for device in devices - {"meta"})
    return HALF if coarse or cast or not can_be_widened(model) else FULL


def largest_gap(before: Any, after: Any, moved: Any = None, most: float = FULL) -> float:
    """The largest difference between two outputs, relative to their size; NaN if none is compared.

    Args:
        before: The first run's output.
        after: The second run's.
        moved: The output of a third run, in which irrelevant inputs differ. Values that depend on
            them are not compared, nor are values that are NaN in the first run.
        most: The tolerance for rounding.
    """
    old, new, other = numbers(before), numbers(after), numbers(moved)
    gaps = [_gap(old[path], new[path], other.get(path), most) for path in old if path in new]
    return max((gap for gap in gaps if not math.isnan(gap)), default=math.nan)


def _gap(old: Tensor, new: Tensor, moved: Tensor | None, most: float) -> float:
    if old.shape != new.shape:
        return math.inf
    old, new = _wide(old), _wide(new)
    sizes = old[old.isfinite()].abs()
    size = sizes.max().clamp(min=1e-6) if len(sizes) else 1.0
    compared = ~(old.isnan() & new.isnan())
    if moved is not None:
        compared &= ((_wide(moved) - new).abs() <= most / 10 * size) & ~old.isnan()
    difference = (old - new).abs().masked_fill(old == new, 0.0)[compared]  # also infinities
    return float((difference / size).nan_to_num(math.inf).max()) if len(difference) else math.nan


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def numbers(output: Any) -> dict[str, Tensor]:
    """The floating-point tensors of an output by their paths.

    Falls back to the attributes of other objects, such as caches, and then to integers.
    """
    for deep, integers in ((False, False), (True, False), (True, True)):
        found = _tensors(output, deep, "", set())
        found = {path: x for path, x in found.items() if x.is_floating_point() or integers}
        if found:
            return found
    return {}


def _tensors(output: Any, deep: bool, path: str, seen: set[int]) -> dict[str, Tensor]:
    if isinstance(output, Tensor):
        return {path: output.detach()} if output.numel() else {}
    if isinstance(output, float):
        return {path: torch.tensor(output)}
    items: Any = ()
    if isinstance(output, Mapping):
        items = output.items()
    elif isinstance(output, list | tuple):
        items = enumerate(output)
    elif deep and hasattr(output, "__dict__") and not isinstance(output, nn.Module | type):
        items = vars(output).items()
    if id(output) in seen:
        return {}
    seen = seen | {id(output)}
    return {
        inner: tensor
        for name, value in items
        for inner, tensor in _tensors(value, deep, f"{path}.{name}", seen).items()
    }
