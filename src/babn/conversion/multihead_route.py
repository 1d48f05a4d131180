"""Replaces the forward of `nn.MultiheadAttention`, also in the encoders that bypass it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from babn.conversion.forwards import Undo, override_forward, own_forward
from babn.conversion.functional_route import FunctionalMode
from babn.conversion.recorder import active_recorder


def multihead_forward(
    self: nn.MultiheadAttention, query: Tensor, key: Tensor, *args: Any, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """`nn.MultiheadAttention.forward` by the method of the module."""
    with FunctionalMode([self], "multihead", crossed=key is not query):
        output: tuple[Tensor, Tensor | None] = own_forward(self)(query, key, *args, **kwargs)
    return output


def keeps_torch_forward(module: nn.MultiheadAttention) -> bool:
    """Whether neither a subclass nor another tool has replaced the forward."""
    plain: bool = type(module).forward is nn.MultiheadAttention.forward
    return plain and "forward" not in vars(module)


def install_multihead(model: nn.Module, chosen: Callable[[nn.Module], bool]) -> list[Undo]:
    """Replaces the forward of each chosen `nn.MultiheadAttention`, and disables the fast path.

    A forward that is not torch's is left in place; the attention functions that it calls are
    replaced as those of any other module.

    The fast path of `nn.TransformerEncoderLayer` reads weights and never calls its attention
    module; it is not taken when a hook is attached. That of `nn.TransformerEncoder` converts
    batches to nested tensors.
    """
    undos: list[Undo] = []
    for module in model.modules():
        if isinstance(module, nn.MultiheadAttention) and chosen(module):
            if keeps_torch_forward(module):
                undos += override_forward(module, multihead_forward)
            undos.append(module.register_forward_pre_hook(_no_fast_path).remove)
        if isinstance(module, nn.TransformerEncoder) and any(map(chosen, module.modules())):
            if module.use_nested_tensor:
                undos.append(partial(setattr, module, "use_nested_tensor", True))
                undos.append(module.register_forward_hook(_zero_padding, with_kwargs=True).remove)
            module.use_nested_tensor = False
    return undos


def _zero_padding(module: nn.Module, args: Any, kwargs: dict[str, Any], output: Tensor) -> Tensor:
    """Writes the zeros that the fast path of `nn.TransformerEncoder` writes at padding."""
    padding = kwargs.get("src_key_padding_mask", args[2] if len(args) > 2 else None)
    fast = torch.backends.mha.get_fastpath_enabled() and not torch.is_grad_enabled()
    if padding is None or module.training or not fast or active_recorder() is not None:
        return output
    padding = padding != 0
    if bool((padding[:, :-1] & ~padding[:, 1:]).any()):  # the fast path needs right padding
        return output
    return output.masked_fill(padding.unsqueeze(-1), 0.0)


def _no_fast_path(module: nn.Module, args: Any) -> None:
    """A hook without effect, whose presence disables the fast path."""
