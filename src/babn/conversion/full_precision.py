"""Runs a model in a precision in which rounding does not hide differences between runs."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from babn.conversion.dry_run import unchanged

LARGEST = 2**30
"""Larger models in half precision are not cast to float32, to save memory."""

_HALF = torch.float16, torch.bfloat16

_aten = torch.ops.aten

PRODUCTS = {
    _aten.mm,
    _aten.addmm,
    _aten.bmm,
    _aten.baddbmm,
    _aten.addbmm,
    _aten.mv,
    _aten.addmv,
    _aten.dot,
    _aten.matmul,
    _aten.linear,
    _aten.einsum,
    _aten.convolution,
    _aten.conv1d,
    _aten.conv2d,
    _aten.conv3d,
    _aten.scaled_dot_product_attention,
    _aten._scaled_dot_product_flash_attention_for_cpu,
    _aten._scaled_dot_product_efficient_attention,
}
"""Operators that torch may compute in TF32 or bfloat16."""


@contextmanager
def full_precision(model: nn.Module) -> Iterator[None]:
    """Runs a model in float32 without autocast, and matrix products in float64."""
    devices = {parameter.device.type for parameter in model.parameters()} | {"cpu"}
    with unchanged(model), ExitStack() as entered, WideProducts():
        for device in devices - {"meta"}:
            entered.enter_context(torch.autocast(device, enabled=False))
        if sum(p.numel() for p in model.parameters() if p.dtype in _HALF) <= LARGEST:
            _widen_weights(model)
        yield


def widened(values: Any) -> Any:
    """Arguments with float32 in place of half precision."""
    return pytree.tree_map_only(Tensor, lambda x: x.float() if x.dtype in _HALF else x, values)


def _widen_weights(model: nn.Module) -> None:
    wide: dict[int, Tensor] = {}  # keeps tied weights tied
    for module in model.modules():
        tables: list[dict[str, Any]] = [module._parameters, module._buffers]
        for table in tables:
            for name, x in table.items():
                if type(x) in (Tensor, nn.Parameter) and x.dtype in _HALF:
                    made = wide.setdefault(id(x), x.detach().float())
                    table[name] = nn.Parameter(made) if isinstance(x, nn.Parameter) else made


class WideProducts(TorchDispatchMode):
    """Computes matrix products of float32 tensors in float64.

    TF32 on a GPU, and bfloat16 inside float32 products on some CPUs, round to 8 to 11 bits. Torch's
    settings to turn them off are global and differ between versions; a mode is local to its
    thread.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Casts the arguments of a product to float64 and its result back."""
        kwargs = kwargs or {}
        if func.overloadpacket not in PRODUCTS or not _all_float32(args, kwargs):
            return func(*args, **kwargs)
        efficient = func.overloadpacket is _aten._scaled_dot_product_efficient_attention
        try:
            return _in_float64(_efficient_attention if efficient else func, args, kwargs)
        except (RuntimeError, TypeError):  # a device or an operator without float64
            return func(*args, **kwargs)


def _all_float32(args: Any, kwargs: Any) -> bool:
    tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    plain = all(type(x) in (Tensor, nn.Parameter) for x in tensors)
    return plain and {x.dtype for x in tensors if x.is_floating_point()} == {torch.float32}


def _in_float64(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    args, kwargs = pytree.tree_map_only(Tensor, _widened, (args, kwargs))
    return pytree.tree_map_only(Tensor, _rounded, func(*args, **kwargs))


def _widened(x: Tensor) -> Tensor:
    return x.double() if x.dtype == torch.float32 else x


def _rounded(x: Tensor) -> Tensor:
    return x.float() if x.dtype == torch.float64 else x


def _efficient_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Tensor, ...]:
    """Replaces a GPU kernel that does not support float64."""
    output, _ = _aten._scaled_dot_product_attention_math(
        query, key, value, bias, dropout, causal, scale=scale
    )
    unused = query.new_zeros(())
    return output, unused, unused.long(), unused.long()
