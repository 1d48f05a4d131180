"""Checksums of a base model's weights, so that an adapter is not loaded onto another base.

Every parameter and persistent buffer, including those of the head, has a 64-bit checksum.
Floating-point tensors have one for each precision in which bases are loaded, so that a base that
was rounded to another precision is verified too.
"""

import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from babn.conversion.state import ATTRIBUTE, active_copy

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Fingerprint:
    """Checksums of a base model.

    Attributes:
        weights: The checksums of each tensor, such as `"float32:0123456789abcdef"`, separated by
            spaces; empty for tensors without local values, such as meta and sharded ones.
        adapters: Checksum of all adapters together; empty if there are none.
    """

    weights: Mapping[str, str] = field(default_factory=dict)
    adapters: str = ""

    @classmethod
    def from_dict(cls, values: Any) -> "Fingerprint":
        """The fingerprint in JSON values, as `asdict` makes them."""
        if not all(isinstance(x, str) for x in (*values["weights"].values(), values["adapters"])):
            raise TypeError("checksums are strings")
        return cls(values["weights"], values["adapters"])


@dataclass(frozen=True)
class Difference:
    """How a base differs from the one that an adapter was saved from.

    Attributes:
        changed: Names of tensors whose values differ, or that only one of the two bases has.
        unverified: Names of tensors that cannot be compared.
    """

    changed: list[str]
    unverified: list[str]


@torch.no_grad()
def fingerprint(root: nn.Module, without: Collection[str] = ()) -> Fingerprint:
    """The fingerprint of a model, converted or not, without the modules of some paths."""
    base, adapters = _tensors(root, without)
    return Fingerprint({name: _checksums(x) for name, x in base.items()}, _combined(adapters))


@torch.no_grad()
def compare(saved: Fingerprint, root: nn.Module, without: Collection[str] = ()) -> Difference:
    """Compares a base with the fingerprint of the one that an adapter was saved from."""
    base, adapters = _tensors(root, without)
    names = dict.fromkeys([*saved.weights, *base])
    found = {name: _matches(saved.weights.get(name), base.get(name)) for name in names}
    quantised = any(_is_quantised(saved.weights.get(name), base.get(name)) for name in names)
    same_names = saved.weights and base and not quantised  # quantised layers hold other tensors
    changed = [
        name
        for name in names
        if found[name] is False or (same_names and (name in saved.weights) != (name in base))
    ]
    unverified = [name for name in names if found[name] is None and name not in changed]
    adapted = _combined(adapters)
    if saved.adapters != adapted:
        (changed if saved.adapters and adapted else unverified).append("the adapters")
    return Difference(changed, unverified)


def _matches(words: str | None, x: Tensor | None) -> bool | None:
    """Whether a tensor is the saved one, up to rounding; `None` if that is unknown."""
    if not words or x is None or not _is_here(x) or _is_quantised(words, x):
        return None
    saved = dict(word.split(":") for word in words.split())
    for kind, dtype in _precisions(x).items():
        rounded = x.to(dtype)
        lossless = dtype == x.dtype or rounded.to(x.dtype).equal(x)
        if lossless and saved.get(kind) == _checksum(rounded):
            return True
    return False


def _is_quantised(words: str | None, x: Tensor | None) -> bool:
    """Whether one of the two bases holds integers where the other holds floats."""
    return bool(words) and x is not None and ("float" in (words or "")) != x.is_floating_point()


def _checksums(x: Tensor) -> str:
    """The checksums of a tensor."""
    if not _is_here(x):
        return ""
    return " ".join(f"{kind}:{_checksum(x.to(dtype))}" for kind, dtype in _precisions(x).items())


def _precisions(x: Tensor) -> dict[str, torch.dtype]:
    """The precisions in which a tensor has a checksum, its own first."""
    own = {str(x.dtype).removeprefix("torch."): x.dtype}
    return own | PRECISIONS if x.is_floating_point() else own


def _is_here(x: Tensor) -> bool:
    """Whether this process holds all values of a tensor: it is neither sharded nor offloaded."""
    wrapped = hasattr(x, "__tensor_flatten__")  # DTensor, and quantised tensors of torchao
    return not (x.is_meta or wrapped or hasattr(x, "ds_id"))


def _checksum(x: Tensor) -> str:
    digest = hashlib.sha256(repr(tuple(x.shape)).encode())
    digest.update(x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def _combined(tensors: Mapping[str, Tensor]) -> str:
    """One checksum of several tensors."""
    words = "\n".join(f"{name} {_checksums(x)}" for name, x in sorted(tensors.items()))
    return hashlib.sha256(words.encode()).hexdigest()[:16] if tensors else ""


def _tensors(
    root: nn.Module, without: Collection[str]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The tensors of a base, without some modules, and of its adapters."""
    belief = f"{ATTRIBUTE}."
    left_out = belief, *(f"{path}." for path in without)
    base: dict[str, Tensor] = {}
    adapters: dict[str, Tensor] = {}
    # FSDP1 has flat parameters, which all processes would have to gather together.
    if not any(type(module).__name__ == "FullyShardedDataParallel" for module in root.modules()):
        for name, x, adapted in _walk(root, "", False):
            if adapted and not name.startswith(belief):
                adapters[name] = x
            elif not adapted and not name.startswith(left_out):
                base[name] = x
    return base, adapters


def _walk(module: Any, prefix: str, adapted: bool) -> Iterator[tuple[str, Tensor, bool]]:
    """Parameters, persistent buffers and quantisation states, by their names without PEFT."""
    if hasattr(module, "modules_to_save") and hasattr(module, "original_module"):
        yield from _walk(active_copy(module), prefix, adapted)
        return
    tuned = hasattr(module, "base_layer") and hasattr(module, "adapter_layer_names")
    own: dict[str, Any] = {}
    module._save_to_state_dict(own, prefix, True)
    for name, x in own.items():
        if isinstance(x, Tensor):
            yield name, x, adapted or tuned
    for name, child in module._modules.items():
        if child is not None and tuned and name == "base_layer":
            yield from _walk(child, prefix, adapted)
        elif child is not None:
            yield from _walk(child, f"{prefix}{name}.", adapted or tuned)
