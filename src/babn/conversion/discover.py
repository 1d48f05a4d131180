"""Finds the attention calls of a model by a dry run.

The dry run also checks that softmax in place of the calls reproduces the model's outputs.
"""

import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.overrides import BaseTorchFunctionMode

from babn.attention.method import normalized_layers
from babn.conversion.attend import Undo, undo_all
from babn.conversion.calls import Call, Chain, Recorder, choose, group, recording
from babn.conversion.dry_run import (
    FULL,
    Arguments,
    can_be_widened,
    check_not_block_sparse,
    evaluation_mode,
    full_precision,
    largest_gap,
    looks_like_attention,
    run_example,
    tolerance_for,
    widened,
)
from babn.conversion.example_inputs import example_call, without_padding
from babn.conversion.softmax_route import install_softmax
from babn.conversion.torch_route import FunctionalMode, install_multihead
from babn.conversion.transformers_route import install_transformers, own_configurations
from babn.errors import (
    ConversionError,
    ExampleInputsError,
    NothingToConvertError,
)


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
    padding are also compared without it.

    Args:
        model: The model.
        example_inputs: As for `convert`.
        layers: The layers to convert, as in `MethodConfig`.
    """
    check_not_block_sparse(model)
    call = example_call(model, example_inputs)
    with evaluation_mode(model):
        record = _faithful_calls(model, call)
        for unpadded in without_padding(call):  # transformers drops masks that hide nothing
            _faithful_calls(model, unpadded)
    chosen, kept = choose(record.calls, normalized_layers(layers))
    return Discovery(group(chosen), kept, _skipped(model, record.calls), record.keys)


def _faithful_calls(model: nn.Module, call: Arguments) -> Recorder:
    """The attention calls of a model, if softmax in their place reproduces its outputs.

    Repeats the comparison in float64 where rounding may hide other differences.
    """
    gap, limit, record = _compared(model, call)
    if not gap < FULL and can_be_widened(model):
        with suppress(ExampleInputsError), full_precision(model):  # not every model runs in it
            gap, limit, record = _compared(model, widened(call))
    if not gap < limit:
        raise _not_reproduced(model, gap, limit)
    return record


def _compared(model: nn.Module, call: Arguments) -> tuple[float, float, Recorder]:
    """The gap between outputs with and without softmax in place of attention, and its tolerance."""
    # A function mode disables the fast path of torch's encoders, which writes zeros at padding.
    # Torch's own switch for the fast path affects all threads.
    with BaseTorchFunctionMode():
        before = run_example(model, call)
    after, record = _recorded(model, call)
    gap, limit = largest_gap(before, after), tolerance_for(model, record.keys, before)
    if record.fully_masked and not gap < limit:
        moved, _ = _recorded(model, call, masked_uniform=True)
        gap = largest_gap(before, after, moved, limit)
    return gap, limit, record


def _recorded(
    model: nn.Module, call: Arguments, masked_uniform: bool = False
) -> tuple[Any, Recorder]:
    """The output with softmax in place of the model's attention calls, and these calls."""
    undos = own_configurations(model)
    try:
        undos += install_everywhere(model)
        functions = FunctionalMode(_running(model, undos))
        with recording(model, masked_uniform) as recorder, functions:
            output = run_example(model, call)
    finally:
        undo_all(undos)
    if not recorder.calls:
        raise NothingToConvertError(_nothing_found(model))
    return output, recorder


def _running(model: nn.Module, undos: list[Undo]) -> list[nn.Module]:
    """The modules whose forward is running, the innermost last, as hooks keep track of them."""
    running = [model]

    def enter(module: nn.Module, _: Any) -> None:
        running.append(module)

    def leave(*_: Any) -> None:
        running.pop()

    for module in model.modules():
        undos.append(module.register_forward_pre_hook(enter).remove)
        undos.append(module.register_forward_hook(leave, always_call=True).remove)
    return running


def _not_reproduced(model: nn.Module, gap: float, limit: float) -> ConversionError:
    name = type(model).__name__
    if math.isnan(gap):
        return ConversionError(
            f"No output of {name} can be compared before and after conversion: all are NaN, depend "
            "on queries without any key, or are not floating-point tensors. Pass example_inputs in "
            "which every query has a key, to a model that returns such tensors. The model is "
            "unchanged."
        )
    return ConversionError(
        f"Attention in {name} has a feature that conversion does not reproduce: with softmax "
        f"weights in its place, outputs move by {gap:.1e} of their size (tolerance {limit:g}). The "
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
