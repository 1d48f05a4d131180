"""Models of transformers that dispatch through its `AttentionInterface`."""

import copy
import inspect
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn

from babn.attention.inputs import Inputs
from babn.attention.static_shapes import shapes_are_static
from babn.conversion.attend import attend, keeps_own_attention, read_mask
from babn.conversion.forwards import Undo
from babn.errors import UnsupportedAttentionError

NAME, NAME_OF_SOME = "babn", "babn-some"
"""What models dispatch to: all layers by a rule, or some of them."""

HARMLESS = {
    "deterministic": "asks flash attention for a deterministic backward pass",
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
"""Keywords that eager and SDPA attention of transformers ignore, and why that is right.

Attention functions receive every keyword that a model or its caller passes down. One that is not
here may change attention, as the indices of sparse attention do, so it is refused.
"""

PACKED = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx")
"""Keywords that mark several texts in one row, which only flash attention reads."""


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
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """The attention function that converted models dispatch to."""
    check_keywords(module, kwargs)
    causal = getattr(module, "is_causal", False) if is_causal is None else is_causal
    implied = bool(causal) and attention_mask is None and query.shape[2] > 1
    mask, bias = read_mask(attention_mask, query, key, implied)
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
        softcap=softcap,
        dropout=dropout if module.training else 0.0,
        windowed=sliding_window is not None,
    )
    output, weights = attend(module, "transformers", inputs)
    return output.transpose(1, 2).contiguous(), weights


def check_keywords(module: nn.Module, keywords: dict[str, Any]) -> None:
    """Refuses a keyword that may change attention in a way that the call would lose."""
    for name, value in keywords.items():
        if value is not None and name not in HARMLESS and name not in _HANDLED:
            raise UnsupportedAttentionError(
                f"{type(module).__name__} passes {name} to its attention function, which babn does "
                f"not support: {_PACKING if name in PACKED else _UNKNOWN}"
            )


_HANDLED = frozenset(inspect.signature(attention).parameters) - {"kwargs"}
_PACKING = (
    "texts packed into one row would see one another. Pass one text to a row, padded, with "
    "attention_mask."
)
_UNKNOWN = (
    "it may change attention, as sinks, paged caches and indices of sparse attention do. Leave it "
    "out if you pass it yourself. Revert the model, or convert one without it."
)


def attention_of_some(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """The same for models of which some layers were not chosen: these run as transformers has it.

    Without a mask, modules are causal unless they say otherwise, as in transformers.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    check_keywords(module, kwargs)
    if kwargs.get("softcap") is None and keeps_own_attention(module):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    if kwargs.get("is_causal") is None:
        kwargs["is_causal"] = getattr(module, "is_causal", True)
    return attention(module, query, key, value, attention_mask, **kwargs)


def mask_of_some(*args: Any, **kwargs: Any) -> Tensor | None:
    """Masks as transformers makes them for torch: none for causality alone, which kernels know."""
    from transformers.masking_utils import sdpa_mask

    return sdpa_mask(*args, **kwargs)


def mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """Boolean masks that always spell causality out; without one, transformers would drop masks.

    Padding alone is a mask of keys, one row for all queries, which is less to read and compute.
    """
    from transformers.masking_utils import bidirectional_mask_function, sdpa_mask

    padding = kwargs.get("attention_mask")
    plain = kwargs.get("mask_function") is bidirectional_mask_function
    if plain and not args and kwargs.get("allow_is_bidirectional_skip"):
        if padding is None:
            return None
        if padding.ndim == 2 and padding.shape[1] == kwargs["kv_length"]:
            seen: Tensor = padding.bool()
            if not shapes_are_static() and bool(seen.all()):
                return None
            return seen[:, None, None, :]
    return sdpa_mask(*args, **{**kwargs, "allow_is_causal_skip": False})


def install_transformers(model: nn.Module, some: bool = False) -> list[Undo]:
    """Points every configuration inside `model` at an attention function above.

    Args:
        model: The model.
        some: Whether some layers keep their own attention.
    """
    if "transformers" not in sys.modules:
        return []
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, mask)
    AttentionInterface.register(NAME_OF_SOME, attention_of_some)
    AttentionMaskInterface.register(NAME_OF_SOME, mask_of_some)
    undos: list[Undo] = []
    for config in dispatching_configurations(model):
        before = config._attn_implementation_internal
        undos.append(partial(setattr, config, "_attn_implementation_internal", before))
        # Layers that keep their attention run as SDPA only where they did before: without a mask it
        # is causal unless the module says otherwise, and eager attention never is.
        config._attn_implementation_internal = NAME_OF_SOME if some and before == "sdpa" else NAME
    return undos


def dispatching_configurations(model: nn.Module) -> list[Any]:
    """The configurations of models inside `model` that dispatch, nested ones included.

    The others must keep their setting, since the form of their masks depends on it.
    """
    from transformers import PreTrainedModel

    models = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    fixed = {id(m.config) for m in models if not m._can_set_attn_implementation()}
    found = {}
    for config in nested_configurations([m.config for m in models]):
        if id(config) not in fixed:
            found[id(config)] = config
    return list(found.values())


def nested_configurations(configs: list[Any]) -> Iterator[Any]:
    """Configurations and those inside them."""
    from transformers import PreTrainedConfig

    for config in configs:
        yield config
        inner = [value for value in vars(config).values() if isinstance(value, PreTrainedConfig)]
        yield from nested_configurations(inner)


def own_configurations(model: nn.Module) -> None:
    """Gives `model` copies of its configurations, which may be shared with other models."""
    if "transformers" not in sys.modules:
        return
    from transformers import PreTrainedConfig

    memo: dict[int, Any] = {}
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, PreTrainedConfig):
                setattr(module, name, copy.deepcopy(value, memo))
