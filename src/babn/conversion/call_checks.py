"""Checks in every forward pass that the converted attention calls are intercepted.

After conversion, attention can still be changed: by another implementation in the configuration,
another forward or another module. Such a model would run without noise and without a KL. Three
checks detect it. They allow forward passes that skip layers, as with early exit, cached encoder
outputs, missing images and LayerDrop:

1. An attention module that ran has made a call in this forward pass.
2. A stack of layers that ran has made at least one self-attention call.
3. All attention modules are still parts of the model.
"""

import re
from collections.abc import Iterable
from functools import partial
from typing import Any

from torch import nn

from babn.conversion.attend import CALL_SITE, Undo
from babn.conversion.forward_context import active_context
from babn.conversion.state import BeliefState
from babn.conversion.transformers_route import NAME, NAME_LIKE_SDPA
from babn.errors import ConversionError


def check_module(module: nn.Module, args: Any, output: Any) -> None:
    """Forward hook of attention modules: raises if the module made no call."""
    path = getattr(module, CALL_SITE).path
    context = active_context()
    if context is None or path not in context.counts:
        raise _changed(f"{path or type(module).__name__} ran without an attention call", module)


def check_stack(paths: tuple[str, ...], module: nn.Module, args: Any, output: Any) -> None:
    """Forward hook of a stack of layers: raises if its self-attention modules made no call."""
    context = active_context()
    called = context is not None and any(path in context.counts for path in paths)
    if not called and not drops_layers(module):
        raise _changed(f"{type(module).__name__} ran without an attention call", module)


def check_parts(root: nn.Module, paths: Iterable[str]) -> None:
    """Raises if a path leads to no converted attention module any more."""
    if all(_leads_to_site(root, path) for path in paths):
        return
    # Wrappers that are added after conversion, such as FSDP's, change the path.
    sites = (getattr(module, CALL_SITE, None) for module in root.modules())
    held = {site.path for site in sites if site is not None}
    for path in paths:
        if path not in held:
            name = path or type(root).__name__
            raise _changed(f"{name} is no longer the module that it was", root)


def _leads_to_site(root: nn.Module, path: str) -> bool:
    module: nn.Module | None = root
    for name in path.split(".") if path else ():
        module = None if module is None else module._modules.get(name)
    return hasattr(module, CALL_SITE)


def drops_layers(module: nn.Module) -> bool:
    """Whether a stack may skip all of its layers in training (LayerDrop)."""
    settings = {**vars(getattr(module, "config", module)), **vars(module)}
    found = [value for name, value in settings.items() if re.search("layer_?drop", name)]
    return module.training and any(isinstance(value, float) and value > 0 for value in found)


def _changed(what: str, module: nn.Module) -> ConversionError:
    """The error for attention that was changed after conversion."""
    found = getattr(getattr(module, "config", None), "_attn_implementation", None)
    remedy = "Undo that change"
    if found is not None and found not in (NAME, NAME_LIKE_SDPA):
        what += f" under attn_implementation={found!r}"
        remedy = f'Call model.set_attn_implementation("{NAME}")'
    return ConversionError(
        f"{what}: attention was changed after conversion, and would have no uncertainty. "
        f"{remedy}, or call babn.revert(model) if plain attention is wanted."
    )


def attach_checks(model: nn.Module, state: BeliefState) -> list[Undo]:
    """Attaches the checks of modules that ran. Call it before the hooks of forward contexts."""
    modules: set[str] = set()
    stacks: dict[str, set[str]] = {}
    for chain in state.chains:
        paths = {call.path for call in chain.calls}
        modules |= paths
        own = {call.path for call in chain.calls if not call.crossed}
        stacks.setdefault(stack_of(model, [*paths]), set()).update(own)
    undos: list[Undo] = [
        model.get_submodule(path).register_forward_hook(check_module).remove for path in modules
    ]
    for path, inner in stacks.items():
        if inner:  # all cross-attention may be skipped
            hook = partial(check_stack, tuple(inner))
            undos.append(model.get_submodule(path).register_forward_hook(hook).remove)
    return undos


def stack_of(model: nn.Module, paths: list[str]) -> str:
    """Path of the innermost module that has a forward and holds the modules of all paths."""
    parts = [path.split(".")[:-1] for path in paths]
    common = parts[0]
    while not all(part[: len(common)] == common for part in parts):
        common = common[:-1]
    while common and type(model.get_submodule(".".join(common))).forward is nn.Module.forward:
        common = common[:-1]
    return ".".join(common)
