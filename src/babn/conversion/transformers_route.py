"""Replaces attention in transformers models that dispatch through `AttentionInterface`."""

import copy
import inspect
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn

from babn.attention.inputs import Inputs
from babn.attention.masking import shapes_are_static
from babn.conversion.attend import Undo, attend, keeps_own_attention, read_mask
from babn.errors import UnsupportedAttentionError

NAME, NAME_LIKE_SDPA = "babn", "babn-sdpa"
"""Names that models dispatch to; the second one if they dispatched to SDPA before.

SDPA is causal by default if it gets no mask, and transformers omits masks that only hide later
keys. Eager attention always gets a mask.
"""

HARMLESS = {
    "deterministic": "requests a deterministic backward pass of flash attention",
    "input_ids": "has become embeddings before the call",
    "kernel_options": "tunes the kernel of flex attention",
    "num_items_in_batch": "normalises the loss",
    "output_attentions": "selects what the model returns; weights are returned where they exist",
    "output_hidden_states": "selects what the model returns",
    "output_router_logits": "selects what the model returns",
    "position_ids": "has acted on queries, keys and the mask before the call",
    "return_dict": "selects what the model returns",
    "token_type_ids": "has acted on embeddings and the mask before the call",
    "use_cache": "selects what the model returns; keys already hold the cache",
}
"""Keywords that eager and SDPA attention of transformers ignore, with the reason.

Attention functions receive every keyword of a model or its caller. Any other keyword may change
attention, as the indices of sparse attention do, and raises an error.
"""


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    sliding_window: Any = None,
    like_sdpa: bool = False,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """The attention function that converted models dispatch to.

    With `like_sdpa`, modules without a mask are causal by default, as in transformers' SDPA, which
    layers that are not converted use. SDPA also ignores `softcap`: Gemma 2 dispatches to SDPA in
    some releases of transformers, and to eager attention in later ones.
    """
    check_keywords(module, kwargs)
    if like_sdpa and keeps_own_attention(module):
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        kwargs |= {"is_causal": is_causal, "position_bias": position_bias}
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, **kwargs
        )
    causal = getattr(module, "is_causal", like_sdpa) if is_causal is None else is_causal
    mask, bias = read_mask(attention_mask, query, key)
    if position_bias is not None:
        position_bias = position_bias[..., : key.shape[2]]
        bias = position_bias if bias is None else bias + position_bias
    inputs = Inputs(
        query,
        key,
        value,
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        mask=mask,
        bias=bias,
        causal=bool(causal) and attention_mask is None and query.shape[2] > 1,
        softcap=None if like_sdpa else softcap,
        dropout=dropout if module.training else 0.0,
        windowed=sliding_window is not None,
    )
    output, weights = attend(module, "transformers", inputs)
    return output.contiguous(), weights


def check_keywords(module: nn.Module, keywords: dict[str, Any]) -> None:
    """Raises if a keyword may change attention and is not supported."""
    for name, value in keywords.items():
        if value is not None and name not in HARMLESS and name not in _HANDLED:
            raise UnsupportedAttentionError(
                f"{type(module).__name__} passes {name} to its attention function, which babn does "
                "not support: it may change attention, as sinks, paged caches, indices of sparse "
                "attention and texts packed into one row do. Leave it out if you pass it yourself, "
                "with one text per row, padded. Revert the model, or convert one without it."
            )


_HANDLED = frozenset(inspect.signature(attention).parameters) - {"kwargs"}


def mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """Boolean masks that always include causality, which transformers would omit by default."""
    return mask_like_sdpa(*args, **{**kwargs, "allow_is_causal_skip": False})


def mask_like_sdpa(*args: Any, **kwargs: Any) -> Tensor | None:
    """Masks as transformers builds them for SDPA: none for plain causal attention.

    Compiled models get none either if they are called without attention mask and cache;
    transformers 5.17 builds one then. For padding alone, the mask has one row for all queries,
    which costs less.
    """
    from transformers.masking_utils import (
        bidirectional_mask_function,
        causal_mask_function,
        sdpa_mask,
    )

    padding, function = kwargs.get("attention_mask"), kwargs.get("mask_function")
    causal = function is causal_mask_function and kwargs.get("allow_is_causal_skip", True)
    if causal and not args:
        whole = kwargs.get("local_size") is None and kwargs.get("q_length") == kwargs["kv_length"]
        if padding is None and whole:
            return None
    plain = function is bidirectional_mask_function
    if plain and not args and kwargs.get("allow_is_bidirectional_skip"):
        if padding is None:
            return None
        if padding.ndim == 2 and padding.shape[1] == kwargs["kv_length"]:
            seen: Tensor = padding.bool()
            if not shapes_are_static() and bool(seen.all()):
                return None
            return seen[:, None, None, :]
    return sdpa_mask(*args, **kwargs)


def install_transformers(model: nn.Module) -> list[Undo]:
    """Sets the attention implementation of every configuration in `model`."""
    if "transformers" not in sys.modules:
        return []
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, mask)
    AttentionInterface.register(NAME_LIKE_SDPA, partial(attention, like_sdpa=True))
    AttentionMaskInterface.register(NAME_LIKE_SDPA, mask_like_sdpa)
    undos: list[Undo] = []
    for config in dispatching_configurations(model):
        before = config._attn_implementation_internal
        undos.append(partial(setattr, config, "_attn_implementation_internal", before))
        name = NAME_LIKE_SDPA if before == "sdpa" else NAME
        config._attn_implementation_internal = name
    return undos


def dispatching_configurations(model: nn.Module) -> list[Any]:
    """The configurations, also nested ones, of models in `model` that dispatch.

    Others keep their setting, since the format of their masks depends on it.
    """
    from transformers import PreTrainedModel

    models = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    fixed = {id(m.config) for m in models if not m._can_set_attn_implementation()}
    found = {id(each): each for each in nested_configurations([m.config for m in models])}
    return [config for key, config in found.items() if key not in fixed]


def nested_configurations(configs: list[Any]) -> Iterator[Any]:
    """Configurations and those nested in them."""
    from transformers import PreTrainedConfig

    for config in configs:
        yield config
        inner = [value for value in vars(config).values() if isinstance(value, PreTrainedConfig)]
        yield from nested_configurations(inner)


def own_configurations(model: nn.Module) -> list[Undo]:
    """Replaces the configurations of `model` by copies, since other models may share them."""
    undos: list[Undo] = []
    if "transformers" not in sys.modules:
        return undos
    from transformers import PreTrainedConfig

    memo: dict[int, Any] = {}
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, PreTrainedConfig):
                undos.append(partial(setattr, module, name, value))
                setattr(module, name, copy.deepcopy(value, memo))
    return undos
