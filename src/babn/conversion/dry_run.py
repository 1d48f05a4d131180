"""Running a model on an example without disturbing it, its process or other threads."""

import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from babn.conversion.snapshot import unchanged
from babn.conversion.transformers_route import own_configurations
from babn.errors import BabnError, ConversionError, ExampleInputsError, UnsupportedAttentionError

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments."""

_one_at_a_time = threading.RLock()
"""A dry run sets the state of torch's random numbers, which all threads share."""


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; the model and the random state are restored.

    Configurations are copies, since other models, in other threads too, may share the originals.
    """
    with _one_at_a_time, torch.no_grad(), torch.random.fork_rng(), unchanged(model):
        own_configurations(model)
        model.eval()
        yield


def check_does_not_switch(model: nn.Module) -> None:
    """Refuses BigBird's block-sparse attention: short texts replace it by another, for good."""
    for module in model.modules():
        sparse = getattr(module, "attention_type", None) == "block_sparse"
        if sparse and hasattr(module, "set_attention_type"):
            raise UnsupportedAttentionError(
                f'attention_type="block_sparse": {type(module).__name__} replaces its attention '
                "modules when a text is short, and conversion would be lost. Build it with "
                'attention_type="original_full".'
            )


class SlowPath(TorchFunctionMode):
    """Keeps torch's encoders off their fast path, which writes zeros at padding.

    They do not take it under a mode. Torch's own switch would turn it off for all threads.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Calls the function as it is."""
        return func(*args, **(kwargs or {}))


def run_example(model: nn.Module, call: Arguments) -> Any:
    """The output for a copy of the arguments, which a forward pass may change."""
    args, kwargs = _copied(call)
    torch.manual_seed(0)  # models that draw random numbers draw the same in each run
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
                f"{type(model).__name__} puts another module at {path} while it runs, of class "
                f"{type(module).__name__}, and conversion would be lost there. Build the model in "
                "that form, so that no forward pass changes it."
            )
    return output


def _copied(call: Arguments) -> Arguments:
    """Arguments whose tensors, those in caches of keys and values too, are copies."""
    try:
        with _CopiesOfResults():
            return copy.deepcopy(call)
    except Exception:  # some objects cannot be copied, such as those with a lock
        copied: Arguments = pytree.tree_map_only(Tensor, Tensor.clone, call)
        return copied


class _CopiesOfResults(TorchFunctionMode):
    """Lets tensors be copied that carry a graph, which torch refuses to copy."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Copies without the graph."""
        if func is Tensor.__deepcopy__:
            return args[0].detach().clone()
        return func(*args, **(kwargs or {}))


def looks_like_attention(module: nn.Module) -> bool:
    """Whether a module's class calls itself attention."""
    return "attention" in type(module).__name__.lower()
