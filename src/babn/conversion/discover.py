"""The dry run: which attention calls a model makes."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from babn.attention.layers import normalized_layers
from babn.conversion.choice import choose
from babn.conversion.examples import example_call, without_padding
from babn.conversion.forwards import Undo
from babn.conversion.multihead_route import install_multihead
from babn.conversion.plan import Call, Chain, group
from babn.conversion.recorder import recording
from babn.conversion.sdpa_route import DiscoverSdpa, ModuleStack
from babn.conversion.softmax_route import install_softmax
from babn.conversion.transformers_route import install_transformers
from babn.errors import BabnError, ConversionError, ExampleInputsError, NothingToConvertError


@dataclass(frozen=True)
class Discovery:
    """What the dry run found.

    Attributes:
        chains: The chains that the chosen attention calls form.
        kept: The calls of layers that were not chosen.
        skipped: Modules that look like attention and take no part, each with the reason.
    """

    chains: tuple[Chain, ...]
    kept: tuple[Call, ...]
    skipped: dict[str, str]


def discover(model: nn.Module, example_inputs: Any, layers: str | Sequence[int]) -> Discovery:
    """Runs `model` on small inputs, as it is and with its attention calls recorded.

    The recorded calls are computed by softmax, so outputs must be equal; if they are not, some
    feature of the model's attention was missed and conversion would change it. Inputs with padding
    are also run without it.

    Args:
        model: The model.
        example_inputs: As for `convert`.
        layers: Which layers follow the rule, as in `RuleConfig`.
    """
    call = example_call(model, example_inputs)
    unpadded = without_padding(call)  # transformers drops masks that hide nothing
    with _undisturbed(model):
        before = [_run(model, each) for each in (call, *unpadded)]
        with ExitStack() as installed:
            for undo in install_everywhere(model):
                installed.callback(undo)
            recorder = installed.enter_context(recording(model))
            stack = ModuleStack(model)
            installed.enter_context(stack.watching(model))
            installed.enter_context(DiscoverSdpa(stack))
            after = [_run(model, call)]
            calls, comparable = list(recorder.calls or ()), not recorder.lone_queries
            after += [_run(model, each) for each in unpadded]
    if not calls:
        raise NothingToConvertError(_nothing_found(model))
    if comparable:
        _check_equal(model, before, after)
    chosen, kept = choose(calls, normalized_layers(layers))
    return Discovery(group(chosen), kept, _skipped(model, calls))


def install_everywhere(
    model: nn.Module,
    drop_dropout: bool = False,
    chosen: Callable[[nn.Module], bool] = lambda module: True,
    some: bool = False,
) -> list[Undo]:
    """Takes over attention on every route but `F.scaled_dot_product_attention`.

    Args:
        model: The model.
        drop_dropout: Whether dropout on attention weights is turned off.
        chosen: Which attention modules are taken over.
        some: Whether not all are.
    """
    return [
        *install_softmax(model, drop_dropout, chosen),  # first, since it may refuse
        *install_transformers(model, some),
        *install_multihead(model, chosen),
    ]


@contextmanager
def _undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; modes and random state are restored.

    The fast path of torch's encoder layers is off, since it writes zeros at padding.
    """
    modes = {module: module.training for module in model.modules()}
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for module, mode in modes.items():
            module.training = mode


def _run(model: nn.Module, call: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
    args, kwargs = pytree.tree_map_only(Tensor, Tensor.clone, call)
    torch.manual_seed(0)  # models that draw random numbers draw the same in both runs
    try:
        return model(*args, **kwargs)
    except BabnError:
        raise
    except Exception as error:
        given = list(kwargs) or [type(arg).__name__ for arg in args]
        raise ExampleInputsError(
            f"The dry run of {type(model).__name__} with {given} failed: "
            f"{type(error).__name__}: {error}. Pass example_inputs that the model accepts."
        ) from error


def _check_equal(model: nn.Module, before: Any, after: Any) -> None:
    for old, new in zip(_floats(before), _floats(after), strict=False):
        scale = old.abs().max().clamp(min=1e-6)
        gap = float((old - new).abs().max() / scale)
        tolerance = 1e-4 if old.dtype in (torch.float32, torch.float64) else 5e-2
        if not gap < tolerance:
            raise ConversionError(
                f"Attention in {type(model).__name__} has a feature that conversion does not "
                f"reproduce: with softmax weights in its place, outputs move by {gap:.1e} of their "
                f"size (tolerance {tolerance:g}). The model is unchanged. If it does not dispatch "
                "through transformers' AttentionInterface, describe its attention module with "
                "babn.register_family."
            )


def _floats(output: Any) -> list[Tensor]:
    """The floating-point tensors of an output, in order; caches and the like are left out."""
    leaves: list[Any] = pytree.tree_leaves(output)
    return [x for x in leaves if isinstance(x, Tensor) and x.is_floating_point()]


def _looks_like_attention(module: nn.Module) -> bool:
    return "attention" in type(module).__name__.lower()


def _skipped(model: nn.Module, calls: list[Call]) -> dict[str, str]:
    """Attention-like modules none of whose own, inner or outer modules made a call."""
    callers = {call.path for call in calls}
    parts = re.compile(r"output|layer$", re.IGNORECASE)
    skipped = {}
    for path, module in model.named_modules():
        related = any(_inside(path, caller) or _inside(caller, path) for caller in callers)
        if (
            _looks_like_attention(module)
            and not related
            and not parts.search(type(module).__name__)
        ):
            skipped[path] = (
                f"{type(module).__name__} made no attention call in the dry run: it was not "
                "reached with these inputs, or computes attention in a way of its own"
            )
    return skipped


def _inside(path: str, outer: str) -> bool:
    return path == outer or path.startswith(f"{outer}.") or outer == ""


def _nothing_found(model: nn.Module) -> str:
    names = sorted({type(m).__name__ for m in model.modules() if _looks_like_attention(m)})
    seen = f"Modules that look like attention: {', '.join(names)}. " if names else ""
    return (
        f"No attention call was found in {type(model).__name__}. {seen}babn reaches models that "
        "dispatch through transformers' AttentionInterface, nn.MultiheadAttention, "
        "F.scaled_dot_product_attention, and families registered with babn.register_family."
    )
