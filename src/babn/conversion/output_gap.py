"""Compares the outputs of two runs of a model, if need be in float64."""

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from babn.conversion.dry_run import unchanged

FULL, HALF = 1e-4, 5e-2
"""Relative tolerance for rounding in float32, and in coarser or unknown precision."""

LARGEST = 2**30
"""Larger models are not cast to float64, to save memory."""


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
