"""Checks in every forward pass that the converted attention calls are intercepted.

After conversion, attention can still be changed: by another implementation in the configuration,
another forward or another module. Such a model would run without noise and without a KL. Three
checks detect it. They allow forward passes that skip layers, as with early exit, cached encoder
outputs, missing images and LayerDrop:

1. An attention module that ran has made a call in this forward pass.
2. A stack of layers that ran has made at least one self-attention call.
3. Stacks, and attention modules that their stack did not call, are still parts of the model.
"""

import re
from collections.abc import Iterable
from functools import partial
from typing import Any

from torch import nn

from babn.conversion.attend import CALL_SITE, Undo
from babn.conversion.hooks import active_context
from babn.conversion.state import BeliefState
from babn.conversion.transformers_route import NAME, NAME_LIKE_SDPA
from babn.errors import ConversionError


def check_module(module: nn.Module, args: Any, output: Any) -> None:
    """Forward hook of attention modules: raises if the module made no call."""
    path = getattr(module, CALL_SITE).path
    context = active_context()
    if context is None or path not in context.counts:
        raise _changed(f"{path or type(module).__name__} ran without an attention call", module)


def check_stack(
    root: nn.Module,
    paths: tuple[str, ...],
    crossed: frozenset[str],
    module: nn.Module,
    args: Any,
    output: Any,
) -> None:
    """Forward hook of a module that holds attention modules.

    Raises if none of them made a call, or if one without a call is no longer part of the model.

    Args:
        root: The converted model.
        paths: Paths of the attention modules.
        crossed: Paths of cross-attention, all of which may be skipped.
        module: The module.
        args: Its arguments.
        output: Its output.
    """
    context = active_context()
    counts = {} if context is None else context.counts
    missing = [path for path in paths if path not in counts]
    if not missing:
        return
    own = [path for path in paths if path not in crossed]
    if own and all(path in missing for path in own) and not drops_layers(module):
        raise _changed(f"{type(module).__name__} ran without an attention call", module)
    check_parts(missing, root)


def check_parts(paths: Iterable[str], root: nn.Module, args: Any = ()) -> None:
    """Forward pre-hook of the root: raises if a path has no converted attention any more."""
    for path in paths:
        if not _is_part(root, path):
            raise _changed(
                f"{path or type(root).__name__} is no longer the module that it was", root
            )


def _is_part(root: nn.Module, path: str) -> bool:
    module: nn.Module | None = root
    for name in path.split(".") if path else ():
        module = None if module is None else module._modules.get(name)
    if module is not None and any(hasattr(inner, CALL_SITE) for inner in module.modules()):
        return True
    # Wrappers that are added after conversion, such as FSDP's, change the path.
    sites = [getattr(inner, CALL_SITE) for inner in root.modules() if hasattr(inner, CALL_SITE)]
    return any(site.path == path or site.path.startswith(f"{path}.") for site in sites)


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
    """Attaches the checks. Call it before the hooks that open and close contexts."""
    calls = [call for chain in state.chains for call in chain.calls]
    modules = dict.fromkeys(call.path for call in calls)
    crossed = frozenset(modules) - {call.path for call in calls if not call.crossed}
    stacks: dict[str, list[str]] = {}
    for chain in state.chains:
        paths = list(dict.fromkeys(call.path for call in chain.calls))
        stacks.setdefault(stack_of(model, paths), []).extend(paths)
    undos: list[Undo] = [
        model.get_submodule(path).register_forward_hook(check_module).remove for path in modules
    ]
    for path, inner in stacks.items():
        # A partial and not a closure, so that a copy of the model checks itself.
        hook = partial(check_stack, model, tuple(dict.fromkeys(inner)), crossed)
        undos.append(model.get_submodule(path).register_forward_hook(hook).remove)
    undos.append(model.register_forward_pre_hook(partial(check_parts, tuple(stacks))).remove)
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
