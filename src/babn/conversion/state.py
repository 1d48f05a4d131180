"""The state that conversion adds to a model: parameters, and call sites of attention modules."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from babn.attention.method import MethodConfig
from babn.conversion.calls import Call, Chain
from babn.errors import BabnWarning, NotConvertedError

ATTRIBUTE = "babn"
"""Attribute of the root of a converted model that holds its `BeliefState`."""

SETTINGS = {
    "temperature": 1.0,
    "noise_level": 1.0,
    "residual": 0.0,  # for regression, the standard deviation that samples do not explain
    "output_mean": 0.0,  # for regression, the units of the data
    "output_scale": 1.0,
}
"""Buffers with the settings of predictions, which files of earlier versions may lack."""

PART = "_babn_part"
"""Attribute of every attention module of a converted model, by which parts are recognised."""


Place = tuple[int, int]
"""Index of a chain, and of a call in it."""


@dataclass(frozen=True)
class CallSite:
    """The places of an attention module's calls, in call order.

    Calls of layers that are not converted have no place, and keep their softmax. All calls of a
    recurrent module have the same place.
    """

    path: str
    places: tuple[Place | None, ...]
    recurrent: bool = False


class BeliefState(nn.Module):
    """All parameters that conversion adds, in one module on the root.

    They are not in the layers because the first layer's upward path needs the maps of all layers,
    which sharded training could not gather otherwise.

    Args:
        config: The method's configuration.
        chains: The converted calls.
        kept: The calls of layers that are not converted.
    """

    kl_weight: Tensor
    temperature: Tensor
    noise_level: Tensor
    residual: Tensor
    output_mean: Tensor
    output_scale: Tensor

    def __init__(
        self, config: MethodConfig, chains: tuple[Chain, ...], kept: tuple[Call, ...] = ()
    ) -> None:
        super().__init__()
        self.config = config
        self.chains = chains
        self.kept = kept
        # Saved tensors are named "rules.": the attribute keeps its name.
        self.rules = nn.ModuleList(config.build(chain.shape) for chain in chains)
        for name, value in {"kl_weight": float(config.kl_weight), **SETTINGS}.items():
            self.register_buffer(name, torch.tensor(value))
        self.saved_modules: tuple[str, ...] = ()  # of the base, set by `freeze_base`
        self.level = 1.0  # the same number, without a device synchronisation
        self.last_kl: dict[str, Tensor] | None = None
        self.kl_use: set[str] | None = None
        self.kl_warned = False

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles do not hold the graph of the last forward."""
        return {**self.__dict__, "last_kl": None, "kl_use": None}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "BeliefState":
        """Moves the state; the buffers keep their dtype, whatever the model's is."""
        before = dict(self.named_buffers(recurse=False))
        super()._apply(fn, recurse)
        for name, value in before.items():
            moved = self.get_buffer(name)
            if moved.dtype != value.dtype and not value.is_meta:
                self._buffers[name] = value.to(moved.device)
        return self

    def set_level(self, level: float) -> None:
        """Sets the factor of the noise in predictions."""
        self.noise_level.fill_(level)
        self.level = level

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        for name in SETTINGS:
            state_dict.setdefault(f"{prefix}{name}", getattr(self, name))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        if not self.noise_level.is_meta:
            self.level = float(self.noise_level)

    def follow_kl(self, output: Any, parts: Sequence[Tensor]) -> None:
        """Records which parts of a training forward a backward pass reaches: outputs, KL or both.

        Compiled forwards are not tracked.
        """
        if torch.compiler.is_compiling() or self.kl_warned:
            return
        if not any(x.requires_grad for x in parts):
            return
        reached: set[str] = set()
        self.kl_use = reached
        for node in {x.grad_fn for x in parts if x.grad_fn is not None}:
            node.register_prehook(lambda _: reached.add("kl"))
        for x in pytree.tree_leaves(output):
            if isinstance(x, Tensor) and x.grad_fn is not None:
                x.grad_fn.register_prehook(lambda _: reached.add("output"))

    def warn_of_unused_kl(self) -> None:
        """Warns, once for each model, if the last training step used the outputs without the KL.

        Called at the next forward, since until then a second backward may reach the KL.
        """
        if torch.compiler.is_compiling() or self.kl_use is None:
            return
        reached, self.kl_use = self.kl_use, None
        if reached == {"output"} and float(self.kl_weight) > 0:
            self.kl_warned = True
            warnings.warn(
                "The last training step left out the KL: its loss was computed from the model's "
                "outputs, as by transformers' Trainer with label smoothing or compute_loss_func. "
                "Use babn.BeliefTrainer, add babn.weighted_kl(model) to the loss, or call "
                "babn.set_kl_weight(model, 0) if you do not want it.",
                BabnWarning,
                stacklevel=2,
            )

    def layer_name(self, place: Place) -> str:
        """Name of a call: its chain and its step."""
        chain, step = place
        return f"{self.chains[chain].name}/{step}"


def own_state(module: nn.Module) -> BeliefState | None:
    """The state of this module, if it is the root of a converted model."""
    found: Any = module._modules.get(ATTRIBUTE)
    if hasattr(found, "modules_to_save"):
        found = active_copy(found)
    return found if isinstance(found, BeliefState) else None


def active_copy(wrapper: Any) -> nn.Module:
    """The module that a wrapper of PEFT's `modules_to_save` uses: one copy for each adapter."""
    enabled = [name for name in wrapper.active_adapters if name in wrapper.modules_to_save]
    off = wrapper.disable_adapters or not enabled
    found: nn.Module = wrapper.original_module if off else wrapper.modules_to_save[enabled[0]]
    return found


def converted_roots(model: nn.Module) -> list[nn.Module]:
    """The roots of all converted models inside `model`."""
    found, seen, waiting = [], set(), [model]
    while waiting:  # `modules()` also makes names, which takes most of its time
        module = waiting.pop()
        if id(module) not in seen:
            seen.add(id(module))
            waiting.extend(each for each in reversed(module._modules.values()) if each is not None)
            if own_state(module) is not None:
                found.append(module)
    return found


def is_part(model: nn.Module) -> bool:
    """Whether `model` has attention modules of a converted model, but not its root."""
    return not converted_roots(model) and any(PART in vars(m) for m in model.modules())


def belief_states(model: nn.Module) -> list[BeliefState]:
    """The states of all converted models inside `model`, at least one."""
    states = [state for root in converted_roots(model) if (state := own_state(root)) is not None]
    if not states:
        raise NotConvertedError(
            f"{type(model).__name__} is not converted. Call babn.convert(model, config) first."
        )
    return states
