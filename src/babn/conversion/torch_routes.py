"""Attention in plain torch: `nn.MultiheadAttention` and `F.scaled_dot_product_attention`."""

import functools
import math
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from babn.conversion.attend import Inputs, attend, read_mask
from babn.errors import UnsupportedAttentionError

Undo = Callable[[], Any]

_OWN_FORWARD = "_babn_own_forward"


def override_forward(module: nn.Module, forward: Callable[..., Any]) -> list[Undo]:
    """Gives one module another forward, as a bound method so that copies of the model keep it."""
    before = module.__dict__.get("forward")
    module.__dict__[_OWN_FORWARD] = before
    bound = types.MethodType(functools.wraps(type(module).forward)(forward), module)
    module.__dict__["forward"] = bound
    return [partial(_restore_forward, module)]


def _restore_forward(module: nn.Module) -> None:
    before = module.__dict__.pop(_OWN_FORWARD)
    del module.__dict__["forward"]
    if before is not None:
        module.__dict__["forward"] = before


def own_forward(module: nn.Module) -> Callable[..., Any]:
    """The forward that `override_forward` replaced: another tool's, or the class's."""
    return module.__dict__[_OWN_FORWARD] or partial(type(module).forward, module)


def sdpa(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    route: str = "sdpa",
) -> tuple[Tensor, Tensor]:
    """`F.scaled_dot_product_attention` by the rule of `module`: output and weights."""
    if query.is_nested:
        raise UnsupportedAttentionError("Nested tensors are not supported: pass padded tensors.")
    lead = query.shape[:-3] if query.ndim > 3 else ()
    query4, key4, value4 = (_four_dimensional(x) for x in (query, key, value))
    if attn_mask is not None and attn_mask.ndim > 4:
        attn_mask = attn_mask.expand(*lead, *attn_mask.shape[-3:]).flatten(0, -4)
    if attn_mask is not None and query.ndim == 3 and attn_mask.ndim == 3:
        attn_mask = attn_mask.unsqueeze(1)
    mask, bias = read_mask(attn_mask, key.shape[-2], query.shape[-2] if is_causal else None)
    mask = mask.to(query.device) if mask is not None else None
    inputs = Inputs(
        query4,
        key4,
        value4,
        scale=scale if scale is not None else 1 / math.sqrt(query.shape[-1]),
        mask=mask,
        bias=bias,
        dropout=dropout_p,
    )
    output, weights = attend(module, route, inputs)
    shape = (*query.shape[:-1], value.shape[-1])
    return output.reshape(shape), weights


def _four_dimensional(x: Tensor) -> Tensor:
    """Batch, head, position, size: a missing head axis is added, further batch axes are merged."""
    if x.ndim == 2:
        return x[None, None]
    return x.unsqueeze(1) if x.ndim == 3 else x.flatten(0, -4)


class SdpaMode(TorchFunctionMode):
    """Sends the `F.scaled_dot_product_attention` calls of one module's forward to its rule."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Takes over scaled dot product attention and nothing else."""
        if func is F.scaled_dot_product_attention:
            return sdpa(self.module, *args, **(kwargs or {}))[0]
        return func(*args, **(kwargs or {}))


def sdpa_forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """A module's own forward with its attention calls taken over."""
    with SdpaMode(self):
        return own_forward(self)(*args, **kwargs)


def install_sdpa(module: nn.Module) -> list[Undo]:
    """Takes over the `F.scaled_dot_product_attention` calls that a module makes itself."""
    return override_forward(module, sdpa_forward)


class ModuleStack:
    """Knows, during a forward pass, which module is at work."""

    def __init__(self, model: nn.Module) -> None:
        self.stack = [model]

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Follows the calls of all modules of `model`."""
        handles = []
        for module in model.modules():
            handles.append(module.register_forward_pre_hook(lambda m, _: self.stack.append(m)))
            handles.append(
                module.register_forward_hook(lambda *_: self.stack.pop() and None, always_call=True)
            )
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


class DiscoverSdpa(TorchFunctionMode):
    """During the dry run, notes which module makes which call."""

    def __init__(self, stack: ModuleStack) -> None:
        super().__init__()
        self.modules = stack.stack

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Records scaled dot product attention under the module at work."""
        if func is F.scaled_dot_product_attention:
            return sdpa(self.modules[-1], *args, **(kwargs or {}))[0]
        return func(*args, **(kwargs or {}))


def multihead_forward(
    self: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """`nn.MultiheadAttention.forward` with the rule's weights in place of softmax.

    Projections and masks are torch's own code; only its last step, the call of scaled dot product
    attention, is replaced.
    """
    batched = query.dim() == 3
    if self.batch_first and batched:
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    kept: list[Tensor] = []
    _multihead.calls.append((self, kept))
    try:
        output = _project_and_attend(self, query, key, value, key_padding_mask, attn_mask)
    finally:
        _multihead.calls.pop()
    if self.batch_first and batched:
        output = output.transpose(0, 1)
    if not need_weights:
        return output, None
    weights = kept[0].mean(1) if average_attn_weights else kept[0]
    return output, weights if batched else weights.squeeze(0)


class _Multihead(threading.local):
    """The multi-head modules at work in this thread, each with a list for its weights."""

    def __init__(self) -> None:
        self.calls: list[tuple[nn.MultiheadAttention, list[Tensor]]] = []


_multihead = _Multihead()


def _multihead_sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Any, p: float, causal: bool) -> Tensor:
    module, kept = _multihead.calls[-1]
    output, weights = sdpa(module, q, k, v, mask, p, causal, route="multihead")
    kept.append(weights)
    return output


_multi_head_attention_forward = types.FunctionType(
    F.multi_head_attention_forward.__code__,
    {
        **F.multi_head_attention_forward.__globals__,
        "scaled_dot_product_attention": _multihead_sdpa,
        "has_torch_function": lambda _: False,
        "_check_key_padding_mask": lambda *_: None,  # torch.compile cannot trace its messages
    },
    argdefs=F.multi_head_attention_forward.__defaults__,
)
"""Torch's own function with its last step replaced."""


def _project_and_attend(
    self: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
) -> Tensor:
    separate = {} if self._qkv_same_embed_dim else _separate_projections(self)
    return _multi_head_attention_forward(
        query,
        key,
        value,
        self.embed_dim,
        self.num_heads,
        self.in_proj_weight,
        self.in_proj_bias,
        self.bias_k,
        self.bias_v,
        self.add_zero_attn,
        self.dropout,
        self.out_proj.weight,
        self.out_proj.bias,
        training=self.training,
        key_padding_mask=key_padding_mask,
        need_weights=False,
        attn_mask=attn_mask,
        **separate,
    )[0]


def _separate_projections(self: nn.MultiheadAttention) -> dict[str, Any]:
    return {
        "use_separate_proj_weight": True,
        "q_proj_weight": self.q_proj_weight,
        "k_proj_weight": self.k_proj_weight,
        "v_proj_weight": self.v_proj_weight,
    }


def install_multihead(model: nn.Module) -> list[Undo]:
    """Takes over every `nn.MultiheadAttention`, and keeps encoders off their fused fast path.

    The fast path of `nn.TransformerEncoderLayer` reads weights and never calls its attention
    module; it is not taken when a hook is attached. That of `nn.TransformerEncoder` turns batches
    into nested tensors.
    """
    undos: list[Undo] = []
    for module in model.modules():
        if isinstance(module, nn.MultiheadAttention):
            undos += override_forward(module, multihead_forward)
            undos.append(module.register_forward_pre_hook(_no_fast_path).remove)
        if isinstance(module, nn.TransformerEncoder):
            if module.use_nested_tensor:
                undos.append(partial(setattr, module, "use_nested_tensor", True))
                undos.append(module.register_forward_hook(_zero_padding, with_kwargs=True).remove)
            module.use_nested_tensor = False
    return undos


def _zero_padding(module: nn.Module, args: Any, kwargs: dict[str, Any], output: Tensor) -> Tensor:
    """Zeros where `nn.TransformerEncoder` would write them: at padding, on its fast path."""
    padding = kwargs.get("src_key_padding_mask", args[2] if len(args) > 2 else None)
    fast = torch.backends.mha.get_fastpath_enabled() and not torch.is_grad_enabled()
    if padding is None or module.training or not fast:
        return output
    return output.masked_fill((padding != 0).unsqueeze(-1), 0.0)


def _no_fast_path(module: nn.Module, args: Any) -> None:
    """A hook that does nothing but be there."""
