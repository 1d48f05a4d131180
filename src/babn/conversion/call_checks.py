"""Checks in every forward pass that the converted attention calls are intercepted.

After conversion, attention can still be changed: by another implementation in the configuration,
another forward or another module. Such a model would run without noise and without a KL. Two checks
detect it. They allow forward passes that skip layers, as with early exit, cached encoder outputs,
missing images and LayerDrop:

1. An attention module that ran has made a call in this forward pass.
2. All attention modules are still parts of the model.
"""

from collections.abc import Iterable
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
    """Attaches the check of modules that ran. Call it before the hooks of forward contexts."""
    paths = {call.path for chain in state.chains for call in chain.calls}
    modules = [model.get_submodule(path) for path in sorted(paths)]
    return [module.register_forward_hook(check_module).remove for module in modules]
