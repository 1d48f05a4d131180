"""Runs a model on an example for the dry run, and compares the outputs of two runs."""

import copy
import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from babn.errors import BabnError, ConversionError, ExampleInputsError, UnsupportedAttentionError

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments."""

FULL, HALF = 1e-4, 5e-2
"""Relative tolerance for rounding in float32, and in coarser or unknown precision."""

LARGEST = 2**30
"""Largest number of parameters that are cast to float64, to save memory."""

_one_at_a_time = threading.RLock()
"""A dry run sets torch's random state, which all threads share."""


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Sets evaluation mode without gradients; restores the mode and the random state on exit."""
    training = [module for module in model.modules() if module.training]
    with _one_at_a_time, torch.no_grad(), torch.random.fork_rng():
        model.eval()
        try:
            yield
        finally:
            for module in training:
                module.training = True


def check_not_block_sparse(model: nn.Module) -> None:
    """Raises for BigBird's block-sparse attention, which a short text replaces permanently."""
    for module in model.modules():
        sparse = getattr(module, "attention_type", None) == "block_sparse"
        if sparse and hasattr(module, "set_attention_type"):
            raise UnsupportedAttentionError(
                f'attention_type="block_sparse": {type(module).__name__} replaces its attention '
                "modules when a text is short, which would undo conversion. Build it with "
                'attention_type="original_full".'
            )


def run_example(model: nn.Module, call: Arguments) -> Any:
    """Runs a model on a copy of the arguments, since a forward pass may change them."""
    args, kwargs = _copied(call)
    torch.manual_seed(0)  # the same random numbers in each run
    known = set(model.modules())
    try:
        output = model(*args, **kwargs)
    except BabnError:
        raise
    except Exception as error:
        given = list(kwargs) or [type(arg).__name__ for arg in args]
        raise ExampleInputsError(
            f"The dry run of {type(model).__name__} with {given} failed: "
            f"{type(error).__name__}: {error}. Pass example_inputs that the model accepts."
        ) from error
    for path, module in model.named_modules():
        if module not in known and looks_like_attention(module):
            raise ConversionError(
                f"{type(model).__name__} replaces the module at {path} in its forward by one "
                f"of class {type(module).__name__}, which would undo conversion. Build the model "
                "in that form, so that no forward pass changes it."
            )
    return output


def _copied(call: Arguments) -> Arguments:
    """Copies arguments with their tensors, including those in key-value caches."""
    try:
        return copy.deepcopy(call)
    except Exception:  # such as for locks, and for tensors with a graph
        copied: Arguments = pytree.tree_map_only(Tensor, Tensor.clone, call)
        return copied


def looks_like_attention(module: nn.Module) -> bool:
    """Whether the name of a module's class, or of a base class of torch, contains "attention"."""
    named = "attention" in type(module).__name__.lower()
    return named or isinstance(module, nn.MultiheadAttention)


def tolerance_for(model: nn.Module, keys: list[Tensor], output: Any) -> float:
    """The relative tolerance for rounding in the output of a model, whose calls have these keys."""
    dtypes = {x.dtype for x in (*model.parameters(), *keys, *_numbers(output).values())}
    coarse = dtypes - {torch.float32, torch.float64}
    cast = any(map(torch.is_autocast_enabled, _devices(model)))
    return HALF if coarse or cast or not can_be_widened(model) else FULL


def _devices(model: nn.Module) -> set[str]:
    """The kinds of devices on which a model computes."""
    return {p.device.type for p in model.parameters()} - {"meta"} | {"cpu"}


def largest_gap(before: Any, after: Any, moved: Any = None, limit: float = FULL) -> float:
    """The largest difference between two outputs, relative to their size; NaN if none is compared.

    Args:
        before: The first run's output.
        after: The second run's.
        moved: The output of a third run, in which irrelevant inputs differ. Values that depend on
            them are not compared, nor are values that are NaN in the first run.
        limit: The tolerance for rounding.
    """
    old, new, other = _numbers(before), _numbers(after), _numbers(moved)
    gaps = [_gap(old[path], new[path], other.get(path), limit) for path in old if path in new]
    return max((gap for gap in gaps if not math.isnan(gap)), default=math.nan)


def _gap(old: Tensor, new: Tensor, moved: Tensor | None, limit: float) -> float:
    if old.shape != new.shape:
        return math.inf
    old, new = _wide(old), _wide(new)
    sizes = old[old.isfinite()].abs()
    size = sizes.max().clamp(min=1e-6) if len(sizes) else 1.0
    compared = ~(old.isnan() & new.isnan())
    if moved is not None:
        compared &= ((_wide(moved) - new).abs() <= limit / 10 * size) & ~old.isnan()
    difference = (old - new).abs().masked_fill(old == new, 0.0)[compared]  # also infinities
    return float((difference / size).nan_to_num(math.inf).max()) if len(difference) else math.nan


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _numbers(output: Any) -> dict[str, Tensor]:
    """The floating-point tensors of an output, or else of its attributes, by their paths."""
    return _tensors(output, "") or _tensors(getattr(output, "__dict__", {}), "")


def _tensors(output: Any, path: str) -> dict[str, Tensor]:
    if isinstance(output, Tensor):
        return {path: output.detach()} if output.is_floating_point() and output.numel() else {}
    items: Any = ()
    if isinstance(output, Mapping):
        items = output.items()
    elif isinstance(output, list | tuple):
        items = enumerate(output)
    return {
        inner: tensor
        for name, value in items
        for inner, tensor in _tensors(value, f"{path}.{name}").items()
    }


def can_be_widened(model: nn.Module) -> bool:
    """Whether a model may be cast to float64: it is not too large, and its devices have it."""
    return "mps" not in _devices(model) and sum(p.numel() for p in model.parameters()) <= LARGEST


@contextmanager
def full_precision(model: nn.Module) -> Iterator[None]:
    """Runs a model in float64 without autocast, whatever torch rounds products of float32 to."""
    tables: list[dict[str, Any]] = [
        table for module in model.modules() for table in (module._parameters, module._buffers)
    ]
    before = [dict(table) for table in tables]
    wide: dict[int, Tensor] = {}  # keeps tied weights tied
    with ExitStack() as entered:
        for device in _devices(model):
            entered.enter_context(torch.autocast(device, enabled=False))
        try:
            for table in tables:
                for name, x in table.items():
                    if type(x) in (Tensor, nn.Parameter) and x.is_floating_point():
                        made = wide.setdefault(id(x), x.detach().double())
                        table[name] = nn.Parameter(made) if isinstance(x, nn.Parameter) else made
            yield
        finally:
            for table, own in zip(tables, before, strict=True):
                table.update(own)


def widened(values: Any) -> Any:
    """Arguments with floating-point tensors in float64."""
    return pytree.tree_map_only(
        Tensor, lambda x: x.double() if x.is_floating_point() else x, values
    )
