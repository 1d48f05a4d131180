"""Training of the belief parameters alone, or with the head of the model."""

from collections.abc import Sequence
from typing import TypeVar

from torch import nn

from babn.conversion.convert import describe
from babn.conversion.state import ATTRIBUTE, belief_states, converted_roots
from babn.errors import ConfigError
from babn.prediction.features import HEADS

Model = TypeVar("Model", bound=nn.Module)


def freeze_base(model: Model, modules_to_save: Sequence[str] | None = None) -> Model:
    """Freezes all parameters but those that conversion added and those of the task head, in place.

    The trainable part is then small, a few kilobytes to a few megabytes; `babn.save_adapter` writes
    it and `babn.load_adapter` loads it onto the same base. Create optimizers afterwards.

    Args:
        model: A converted model. Adapters on it are frozen too; to train both, freeze nothing and
            name `"babn"` in the `modules_to_save` of PEFT.
        modules_to_save: Further modules to train and save, by name, as in PEFT; by default the
            classification head if the model has one, which is new after `from_pretrained` of a
            pretrained encoder. With `()`, only the parameters that conversion added are trained.
    """
    states, roots = belief_states(model), converted_roots(model)
    chosen = [
        _heads(root) if modules_to_save is None else _named(root, modules_to_save) for root in roots
    ]
    model.requires_grad_(False)
    for state, root, names in zip(states, roots, chosen, strict=True):
        state.requires_grad_(True)
        state.saved_modules = names
        for name in names:
            root.get_submodule(name).requires_grad_(True)
        if hasattr(config := getattr(root, "config", None), ATTRIBUTE):
            setattr(config, ATTRIBUTE, describe(state))  # written by save_pretrained
    return model


def _heads(root: nn.Module) -> tuple[str, ...]:
    """Names of the heads of a model; wrappers of PEFT save themselves."""
    return tuple(
        name
        for name in HEADS
        if isinstance(head := getattr(root, name, None), nn.Module)
        and not hasattr(head, "modules_to_save")
        and all(parameter.is_floating_point() for parameter in head.parameters())
    )


def _named(root: nn.Module, names: Sequence[str]) -> tuple[str, ...]:
    """Paths of the modules with the given names or ends of names."""
    if isinstance(names, str):
        raise ConfigError(f"modules_to_save={names!r} is one text. Give a list of names.")
    paths = [path for path, _ in root.named_modules() if path.split(".")[0] != ATTRIBUTE]
    found: list[str] = []
    for name in names:
        own = [path for path in paths if f".{path}".endswith(f".{name}") and path]
        if not own:
            known = [child for child, _ in root.named_children() if child != ATTRIBUTE]
            raise ConfigError(
                f"modules_to_save has {name!r}, which {type(root).__name__} does not have. Its "
                f"modules are {known} and those inside them."
            )
        found += own
    return tuple(dict.fromkeys(found))
