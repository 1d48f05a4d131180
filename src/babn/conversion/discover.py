"""Finds the attention calls of a model by a dry run.

The dry run also checks that softmax in place of the calls reproduces the model's outputs.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from babn.attention.method import normalized_layers
from babn.conversion.attend import Undo
from babn.conversion.calls import Call, Chain, Recorder, choose, group, recording
from babn.conversion.dry_run import (
    Arguments,
    check_does_not_switch,
    looks_like_attention,
    run_example,
    unchanged,
    undisturbed,
)
from babn.conversion.example_inputs import example_call, without_padding
from babn.conversion.softmax_route import install_softmax
from babn.conversion.torch_route import FunctionalMode, install_multihead
from babn.conversion.transformers_route import install_transformers, own_configurations
from babn.errors import (
    ConversionError,
    ExampleInputsError,
    NothingToConvertError,
    UnsupportedAttentionError,
)

FULL, HALF = 1e-4, 5e-2
"""Relative tolerance for rounding in float32, and in coarser or unknown precision."""

LARGEST = 2**30
"""Largest number of parameters that are cast to float64, to save memory."""


@dataclass(frozen=True)
class Discovery:
    """The result of a dry run.

    Attributes:
        chains: The chains that the chosen attention calls form.
        kept: The calls of layers that were not chosen.
        skipped: Modules that look like attention and are not converted, with the reason.
        keys: The keys of every call, in call order.
    """

    chains: tuple[Chain, ...]
    kept: tuple[Call, ...]
    skipped: dict[str, str]
    keys: list[Tensor]


def discover(model: nn.Module, example_inputs: Any, layers: str | Sequence[int]) -> Discovery:
    """Runs `model` on small inputs, unchanged and with its attention calls recorded.

    The second run computes the recorded calls by softmax, so its outputs must equal the first
    run's; if they do not, conversion would miss a feature of the model's attention. Inputs with
    padding are also compared without it. The model is restored afterwards.

    Args:
        model: The model.
        example_inputs: As for `convert`.
        layers: The layers to convert, as in `MethodConfig`.
    """
    check_does_not_switch(model)
    call = example_call(model, example_inputs)
    with undisturbed(model):
        record = _faithful_calls(model, call)
        for unpadded in without_padding(call):  # transformers drops masks that hide nothing
            _faithful_calls(model, unpadded)
    chosen, kept = choose(record.calls, normalized_layers(layers))
    return Discovery(group(chosen), kept, _skipped(model, record.calls), record.keys)


def _faithful_calls(model: nn.Module, call: Arguments) -> Recorder:
    """The attention calls of a model, if softmax in their place reproduces its outputs.

    Repeats the comparison in float64 where rounding may hide other differences.
    """
    gap, most, record = _compared(model, call)
    if not gap < FULL and _can_be_widened(model):
        with suppress(ExampleInputsError), _full_precision(model):  # not every model runs in it
            gap, most, record = _compared(model, _widened(call))
    if not gap < most:
        raise _not_reproduced(model, gap, most)
    return record


def _compared(model: nn.Module, call: Arguments) -> tuple[float, float, Recorder]:
    """The gap between outputs with and without softmax in place of attention, and its tolerance."""
    # The function mode of `unchanged` disables the fast path of torch's encoders, which writes
    # zeros at padding. Torch's own switch for the fast path affects all threads.
    with unchanged(model):
        before = run_example(model, call)
    after, record = _recorded(model, call)
    gap, most = _largest_gap(before, after), _tolerance(model, record.keys, before)
    if record.fully_masked and not gap < most:
        moved, _ = _recorded(model, call, masked_uniform=True)
        gap = _largest_gap(before, after, moved, most)
    return gap, most, record


def _recorded(
    model: nn.Module, call: Arguments, masked_uniform: bool = False
) -> tuple[Any, Recorder]:
    """The output with softmax in place of the model's attention calls, and these calls."""
    with unchanged(model):  # also removes the hooks and forwards that are installed here
        own_configurations(model)
        install_everywhere(model)
        running, entered = _tracked(model)
        with recording(model, masked_uniform) as recorder, FunctionalMode(running):
            output = run_example(model, call)
    _check_multihead(model, entered, recorder.calls)
    if not recorder.calls:
        raise NothingToConvertError(_nothing_found(model))
    return output, recorder


def _tracked(model: nn.Module) -> tuple[list[nn.Module], set[nn.Module]]:
    """The modules whose forward is running, the innermost last, and those whose forward has run."""
    running, entered = [model], set()

    def enter(module: nn.Module, _: Any) -> None:
        running.append(module)
        entered.add(module)

    def leave(*_: Any) -> None:
        running.pop()

    for module in model.modules():
        module.register_forward_pre_hook(enter)
        module.register_forward_hook(leave, always_call=True)
    return running, entered


def _check_multihead(model: nn.Module, entered: set[nn.Module], calls: list[Call]) -> None:
    """Raises if a multi-head module ran without a recorded call."""
    callers = {call.path for call in calls}
    for path, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention) and module in entered and path not in callers:
            raise UnsupportedAttentionError(
                f"{path or 'The model'} is of class {type(module).__name__}, derived from "
                "nn.MultiheadAttention, and its forward computes attention in a way that cannot be "
                "replaced. Call super().forward or F.scaled_dot_product_attention in it."
            )


def _not_reproduced(model: nn.Module, gap: float, most: float) -> ConversionError:
    name = type(model).__name__
    if math.isnan(gap):
        return ConversionError(
            f"No output of {name} can be compared before and after conversion: all are NaN, depend "
            "on queries without any key, or are not tensors. Pass example_inputs in which every "
            "query has a key, to a model that returns tensors. The model is unchanged."
        )
    return ConversionError(
        f"Attention in {name} has a feature that conversion does not reproduce: with softmax "
        f"weights in its place, outputs move by {gap:.1e} of their size (tolerance {most:g}). The "
        "model is unchanged. If it does not dispatch through transformers' AttentionInterface, "
        "describe its attention module with babn.register_family."
    )


def install_everywhere(
    model: nn.Module,
    drop_dropout: bool = False,
    chosen: Callable[[nn.Module], bool] = lambda module: True,
) -> list[Undo]:
    """Replaces attention on every route except calls of torch's functions.

    Args:
        model: The model.
        drop_dropout: Whether to turn off dropout on attention weights.
        chosen: Which attention modules are converted.
    """
    return [
        *install_softmax(model, drop_dropout, chosen),  # first, since it may raise
        *install_transformers(model),
        *install_multihead(model, chosen),
    ]


def _skipped(model: nn.Module, calls: list[Call]) -> dict[str, str]:
    """Modules that look like attention but made no call, nor did any module in or around them."""
    callers = {call.path for call in calls}
    parts = re.compile(r"output|layer$", re.IGNORECASE)
    skipped = {}
    for path, module in model.named_modules():
        related = any(_inside(path, caller) or _inside(caller, path) for caller in callers)
        if looks_like_attention(module) and not related and not parts.search(type(module).__name__):
            skipped[path] = (
                f"{type(module).__name__} made no attention call in the dry run: it was not "
                "reached with these inputs, or computes attention itself"
            )
    return skipped


def _inside(path: str, outer: str) -> bool:
    return path == outer or path.startswith(f"{outer}.") or outer == ""


def _nothing_found(model: nn.Module) -> str:
    names = sorted({type(m).__name__ for m in model.modules() if looks_like_attention(m)})
    seen = f"Modules that look like attention: {', '.join(names)}. " if names else ""
    return (
        f"No attention call was found in {type(model).__name__}. {seen}babn converts models that "
        "dispatch through transformers' AttentionInterface, nn.MultiheadAttention, "
        "F.scaled_dot_product_attention, and families registered with babn.register_family."
    )


def _tolerance(model: nn.Module, keys: list[Tensor], output: Any) -> float:
    """The relative tolerance for rounding in the output of a model, whose calls have these keys."""
    floats = [x for x in _numbers(output).values() if x.is_floating_point()]
    dtypes = {x.dtype for x in (*model.parameters(), *keys, *floats)}
    coarse = dtypes - {torch.float32, torch.float64}
    cast = any(map(torch.is_autocast_enabled, _devices(model)))
    return HALF if coarse or cast or not _can_be_widened(model) else FULL


def _devices(model: nn.Module) -> set[str]:
    """The kinds of devices on which a model computes."""
    return {p.device.type for p in model.parameters()} - {"meta"} | {"cpu"}


def _largest_gap(before: Any, after: Any, moved: Any = None, most: float = FULL) -> float:
    """The largest difference between two outputs, relative to their size; NaN if none is compared.

    Args:
        before: The first run's output.
        after: The second run's.
        moved: The output of a third run, in which irrelevant inputs differ. Values that depend on
            them are not compared, nor are values that are NaN in the first run.
        most: The tolerance for rounding.
    """
    old, new, other = _numbers(before), _numbers(after), _numbers(moved)
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


def _numbers(output: Any) -> dict[str, Tensor]:
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


def _can_be_widened(model: nn.Module) -> bool:
    """Whether a model may be cast to float64: it is not too large, and its devices have it."""
    return "mps" not in _devices(model) and sum(p.numel() for p in model.parameters()) <= LARGEST


@contextmanager
def _full_precision(model: nn.Module) -> Iterator[None]:
    """Runs a model in float64 without autocast, whatever torch rounds products of float32 to."""
    with unchanged(model), ExitStack() as entered:
        for device in _devices(model):
            entered.enter_context(torch.autocast(device, enabled=False))
        _widen_weights(model)
        yield


def _widened(values: Any) -> Any:
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
