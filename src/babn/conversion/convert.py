"""`inspect`, `convert` and `revert`."""

from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, TypeVar, cast

import torch
from torch import nn

from babn.attention.belief import BeliefConfig
from babn.attention.method import AttentionMethod, MethodConfig
from babn.conversion.attend import CALL_SITE, Undo, override_forward, undo_all
from babn.conversion.calls import RECURRENT, Call, Chain
from babn.conversion.checkpointing import unwrap_checkpoints
from babn.conversion.discover import discover, install_everywhere
from babn.conversion.hooks import attach_hooks
from babn.conversion.state import (
    ATTRIBUTE,
    PART,
    BeliefState,
    CallSite,
    Place,
    belief_states,
    converted_roots,
    is_part,
    own_state,
)
from babn.conversion.torch_route import functional_forward
from babn.conversion.transformers_route import own_configurations
from babn.devices import default_device, device_of
from babn.errors import (
    AlreadyConvertedError,
    ConfigError,
    KeyLengthError,
    NonFiniteError,
    NotConvertedError,
)
from babn.kernels import dispatch

Model = TypeVar("Model", bound=nn.Module)

FORMAT = 1
"""Format version of the description in configurations and adapter files."""

_UNDOS = "_babn_undos"


@dataclass(frozen=True)
class Inspection:
    """The attention calls of a model and what conversion does to them.

    Attributes:
        model: Class of the model.
        config: Configuration of the attention method.
        chains: Chains of attention calls, each a separate belief network.
        kept: Calls of layers that are not converted and keep the model's own attention.
        skipped: Modules that look like attention and are not converted, with the reason.
        converted: Whether the model is already converted.
        device: Device of the model, or the likely one if it is on the meta device.
        noise_level: Factor of the noise in predictions.
    """

    model: str
    config: MethodConfig
    chains: tuple[Chain, ...]
    kept: tuple[Call, ...]
    skipped: dict[str, str]
    converted: bool
    device: torch.device = field(default_factory=default_device)
    noise_level: float = 1.0

    @property
    def kernel(self) -> str:
        """Implementation of attention: `"torch"`, `"triton"`, or `"reference"` with a reason."""
        return dispatch.describe(self.config, self.device)

    @property
    def parameters_added(self) -> int:
        """Total number of parameters that the method adds."""
        return sum(chain.parameters(self.config) for chain in self.chains)

    @property
    def calls(self) -> int:
        """Number of converted attention calls in one forward pass."""
        return sum(len(chain.calls) for chain in self.chains)

    @property
    def share(self) -> float:
        """Share of attention calls that are converted."""
        return self.calls / (self.calls + len(self.kept))

    def __str__(self) -> str:
        """A line for each chain, and what is not converted."""
        done = "is converted" if self.converted else "can be converted"
        lines = [
            f"{self.model} {done}: {self.calls} attention calls in {len(self.chains)} chain(s); "
            f"method {self.config.name!r} adds {self.parameters_added:,} parameters.",
            "",
        ]
        for chain in self.chains:
            first = chain.calls[0]
            lines.append(
                f"  {chain.name}: {len(chain.calls)} steps, {first.heads} heads of size "
                f"{first.head_dim}, route {first.route!r}, "
                f"{chain.parameters(self.config):,} parameters"
            )
        lines += ["", f"Kernel: {self.kernel}"]
        if self.noise_level != 1:
            lines.append(f"Noise level of predictions: {self.noise_level:g}")
        if self.kept:
            names = ", ".join(dict.fromkeys(call.path for call in self.kept))
            lines += [
                "",
                f"Layers: {self.config.layers!r} takes {self.calls} of "
                f"{self.calls + len(self.kept)} attention calls ({self.share:.0%}).",
                f"The others keep the model's own softmax attention: {names}",
            ]
        if self.skipped:
            lines += ["", "Skipped:"]
            lines += [f"  {path}: {reason}" for path, reason in self.skipped.items()]
        return "\n".join(lines)


def inspect(
    model: nn.Module, example_inputs: Any = None, config: MethodConfig | None = None
) -> Inspection:
    """Reports what conversion would do, without changing the model.

    Args:
        model: Any model.
        example_inputs: A tensor, a tuple of positional or a dictionary of keyword arguments; not
            needed for transformers models.
        config: Configuration of the attention method; `BeliefConfig()` by default.

    Returns:
        Chains of attention calls, skipped modules with reasons, and the number of parameters that
        conversion adds; prints as a table.
    """
    config = config or BeliefConfig()
    device = device_of(model)
    device = default_device() if device.type == "meta" else device
    name = type(model).__name__
    if converted_roots(model):
        state = belief_states(model)[0]
        chains, kept = state.chains, state.kept
        return Inspection(name, state.config, chains, kept, {}, True, device, state.level)
    check_whole(model)
    found = discover(model, example_inputs, config.layers)
    return Inspection(name, config, found.chains, found.kept, found.skipped, False, device)


def convert(model: Model, config: MethodConfig | None = None, example_inputs: Any = None) -> Model:
    """Replaces the attention of `model` by an attention method, in place.

    Args:
        model: A transformers model, or any module that uses `nn.MultiheadAttention` or
            `F.scaled_dot_product_attention`.
        config: Configuration of the attention method; `BeliefConfig()` by default.
        example_inputs: Inputs for a dry run that finds the attention calls: a tensor, a tuple or a
            dictionary. Not needed for transformers models.

    Returns:
        The same object, of the same class.
    """
    config = BeliefConfig() if config is None else config
    check_convertible(model, config)
    found = discover(model, example_inputs, config.layers)
    state = BeliefState(config, found.chains, found.kept)
    for chain, method in zip(state.chains, state.rules, strict=True):
        cast(AttentionMethod, method).observe([found.keys[call.order] for call in chain.calls])
    return apply_plan(model, state)


def check_convertible(model: nn.Module, config: MethodConfig) -> None:
    """Validates that a model can be converted."""
    if not isinstance(config, MethodConfig):
        raise ConfigError(
            f"config={config!r} is not a method's configuration. Pass babn.BeliefConfig(...), "
            "babn.BamConfig(...) or another MethodConfig."
        )
    check_whole(model)
    for path, module in model.named_modules():
        if own_state(module) is not None:
            what = f"{path} in {type(model).__name__}" if path else type(model).__name__
            raise AlreadyConvertedError(
                f"{what} is already converted. Call babn.revert(model) first."
            )
    check_finite(dict(model.named_parameters()))


def check_whole(model: nn.Module) -> None:
    """Raises if `model` is part of a converted model."""
    if is_part(model):
        raise AlreadyConvertedError(
            f"{type(model).__name__} is part of a converted model. Call "
            "babn.revert on that model first."
        )


@torch.no_grad()  # two threads that record gradients of one parameter can deadlock
def check_finite(tensors: dict[str, torch.Tensor]) -> None:
    """Validates that all values are finite."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not tensor.is_meta and not bool(tensor.isfinite().all()):
            bad = int((~tensor.isfinite()).sum())
            raise NonFiniteError(
                f"{name} has {bad} NaN or infinite values of {tensor.numel()}. Reload or retrain."
            )


def apply_plan(model: Model, state: BeliefState) -> Model:
    """Converts a model with known chains, without a dry run."""
    _check_lengths(state.config, state.chains)
    state.to(device=device_of(model)).train(model.training)
    own_configurations(model)
    setattr(model, ATTRIBUTE, state)
    # Partials and methods, not closures, so that a copy of the model gets its own undos.
    model.__dict__[_UNDOS] = [
        *_attach_sites(model, state),
        *attach_hooks(model),
        *install_everywhere(
            model,
            drop_dropout=not state.config.attention_dropout,
            chosen=lambda module: hasattr(module, CALL_SITE),
        ),
    ]
    model_config = getattr(model, "config", None)
    if hasattr(model_config, "to_json_string"):
        setattr(model_config, ATTRIBUTE, describe(state))
    return model


def describe(state: BeliefState) -> dict[str, Any]:
    """The JSON description from which the same conversion can be repeated."""
    return {
        "format": FORMAT,
        "rule": state.config.to_dict(),
        "chains": [asdict(chain) for chain in state.chains],
        "kept": [asdict(call) for call in state.kept],
        **({"modules_to_save": list(state.saved_modules)} if state.saved_modules else {}),
    }


def revert(model: Model) -> Model:
    """Removes the attention method and its parameters, in place; trained base weights stay.

    Outputs are then bitwise equal to those of the same weights without conversion.
    """
    roots = converted_roots(model)
    if not roots:
        whole = "part of a converted model: revert that one"
        what = whole if is_part(model) else "not converted: nothing to revert"
        raise NotConvertedError(f"{type(model).__name__} is {what}.")
    for root in roots:
        undo_all(root.__dict__.pop(_UNDOS))
        unwrap_checkpoints(root)
        delattr(root, ATTRIBUTE)
        if hasattr(getattr(root, "config", None), ATTRIBUTE):
            delattr(root.config, ATTRIBUTE)
    return model


def _check_lengths(config: MethodConfig, chains: tuple[Chain, ...]) -> None:
    longest = max(call.keys for chain in chains for call in chain.calls)
    if config.max_keys is not None and longest > config.max_keys:
        raise KeyLengthError(
            f"The dry run had {longest} keys, more than max_length={config.max_keys}. Use "
            f'max_length={longest} or more, or upward="heads", which has no limit.'
        )


def _attach_sites(model: nn.Module, state: BeliefState) -> list[Undo]:
    """Marks all attention modules, and attaches call sites to those with converted calls."""
    placed: list[tuple[Call, Place | None]] = [
        (call, (number, step))
        for number, chain in enumerate(state.chains)
        for step, call in enumerate(chain.calls)
    ]
    placed += [(call, None) for call in state.kept]
    modules: dict[str, list[tuple[Call, Place | None]]] = {}
    for call, place in sorted(placed, key=lambda entry: entry[0].order):
        modules.setdefault(call.path, []).append((call, place))
    undos: list[Undo] = []
    for path, calls in modules.items():
        module = model.get_submodule(path)
        vars(module)[PART] = True
        undos.append(partial(delattr, module, PART))
        routes = {call.route for call, place in calls if place is not None}
        if routes:
            places = tuple(place for _, place in calls)
            recurrent = bool(getattr(module, RECURRENT, False))
            setattr(module, CALL_SITE, CallSite(path, places, recurrent))
            undos.append(partial(delattr, module, CALL_SITE))
        if "sdpa" in routes:
            undos.append(override_forward(module, functional_forward))
    return undos
