"""`inspect`, `convert` and `revert`."""

from dataclasses import asdict
from functools import partial
from typing import Any, TypeVar, cast

import torch
from torch import nn

from babn.attention.belief import BeliefConfig
from babn.attention.method import AttentionMethod, MethodConfig
from babn.conversion.attend import CALL_SITE
from babn.conversion.call_checks import attach_checks
from babn.conversion.discover import discover, install_everywhere
from babn.conversion.forwards import Undo
from babn.conversion.hooks import Enter, leave, unwrap_checkpoints
from babn.conversion.inspection import Inspection, likely_device
from babn.conversion.plan import Call, Chain
from babn.conversion.recorder import RECURRENT
from babn.conversion.state import (
    ATTRIBUTE,
    BeliefState,
    CallSite,
    belief_states,
    converted_roots,
    is_part,
    mark_parts,
    own_state,
)
from babn.conversion.torch_route import install_functional
from babn.conversion.transformers_route import own_configurations
from babn.errors import (
    AlreadyConvertedError,
    ConfigError,
    KeyLengthError,
    NonFiniteError,
    NotConvertedError,
)

Model = TypeVar("Model", bound=nn.Module)

FORMAT = 1
"""Format version of the description in configurations and adapter files."""

_UNDOS = "_babn_undos"


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
    device = next(model.parameters(), torch.empty(0)).device
    device = likely_device() if device.type == "meta" else device
    if converted_roots(model):
        state = belief_states(model)[0]
        about = type(model).__name__, state.config, state.chains, state.kept
        return Inspection(*about, {}, True, device, state.level)
    check_whole(model)
    found = discover(model, example_inputs, config.layers)
    return Inspection(
        type(model).__name__, config, found.chains, found.kept, found.skipped, False, device
    )


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
                f"{what} is converted already. Call babn.revert(model) first."
            )
    check_finite(dict(model.named_parameters()))


def check_whole(model: nn.Module) -> None:
    """Raises if `model` is part of a converted model."""
    if is_part(model):
        raise AlreadyConvertedError(
            f"{type(model).__name__} is part of a model that is converted already. Call "
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
    reference = next(model.parameters(), torch.empty(0))
    state.to(device=reference.device).train(model.training)
    own_configurations(model)
    setattr(model, ATTRIBUTE, state)
    # Partials and methods, not closures, so that a copy of the model gets its own undos.
    model.__dict__[_UNDOS] = [
        *mark_parts(model, state),
        *_attach_sites(model, state),
        *attach_checks(model, state),
        *_attach_hooks(model),
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
        for undo in reversed(root.__dict__.pop(_UNDOS)):
            undo()
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
    """Attaches a call site to every attention module with converted calls."""
    placed: list[tuple[Call, tuple[int, int] | None]] = [
        (call, (number, step))
        for number, chain in enumerate(state.chains)
        for step, call in enumerate(chain.calls)
    ]
    chosen = {call.path: call for call, _ in placed}
    placed += [(call, None) for call in state.kept if call.path in chosen]
    places: dict[str, list[tuple[int, int] | None]] = {}
    for call, place in sorted(placed, key=lambda entry: entry[0].order):
        places.setdefault(call.path, []).append(place)
    undos: list[Undo] = []
    for path, call in chosen.items():
        module = model.get_submodule(path)
        recurrent = bool(getattr(module, RECURRENT, False))
        setattr(module, CALL_SITE, CallSite(path, tuple(places[path]), recurrent))
        undos.append(partial(delattr, module, CALL_SITE))
        if call.route == "sdpa":
            undos += install_functional(module)
    return undos


def _attach_hooks(model: nn.Module) -> list[Undo]:
    """Opens a forward context at the root, and at inner models that may be called directly."""
    entries = [model, *(m for m in model.modules() if hasattr(m, "base_model_prefix"))]
    undos: list[Undo] = []
    for module in dict.fromkeys(entries):
        if any(hasattr(inner, CALL_SITE) for inner in module.modules()):
            enter = module.register_forward_pre_hook(Enter(model), with_kwargs=True)
            closing = module.register_forward_hook(leave, with_kwargs=True, always_call=True)
            undos += [enter.remove, closing.remove]
    return undos
