"""The part that all routes share: intercepting a module's calls, and computing one call."""

import functools
import types
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from babn.attention.inputs import Inputs, repeat_heads
from babn.attention.masking import normalize
from babn.conversion.calls import active_recorder
from babn.conversion.checkpointing import check_not_reentrant
from babn.conversion.forward_context import active_context, current_context
from babn.conversion.state import CallSite
from babn.kernels.sdpa import softmax_attention, takes_softmax

MASKED_BELOW = -5e3
"""Additive masks use values from -1e4 to minus infinity; biases are far above."""

CALL_SITE = "_babn_site"
"""Attribute of attention modules with converted calls that holds their `CallSite`."""

_OWN_FORWARD = "_babn_own_forward"

Undo = Callable[[], Any]
"""Undoes one change to a model."""


def undo_all(undos: list[Undo]) -> None:
    """Undoes changes, the last one first."""
    for undo in reversed(undos):
        undo()


def attend(
    module: nn.Module, route: str, inputs: Inputs
) -> tuple[Float[Tensor, "batch query head dim"], Float[Tensor, "batch head query key"] | None]:
    """Computes an attention call of `module`: the output, and the weights if they were needed.

    In the output the heads of a token are adjacent, as kernels write it and models take it. Calls
    that are in no chain keep their softmax.
    """
    recorder, context, place = active_recorder(), active_context(), None
    site: CallSite | None = getattr(module, CALL_SITE, None)
    dropout = inputs.dropout
    if recorder is None and site is not None:
        context = current_context(site)
        check_not_reentrant(context)
        place = context.next_place(site)
    if context is not None and place is not None:
        dropout = inputs.dropout if context.state.config.attention_dropout else 0.0
        if (output := context.fused(place, inputs, dropout)) is not None:
            return output, None
    with torch.autocast(inputs.query.device.type, enabled=False):
        if recorder is not None:
            weights = recorder.record(module, route, inputs)
        elif context is not None and place is not None:
            posterior, noise = context.posterior(place, inputs.scores())
            weights = posterior.mean_weights() if noise is None else posterior.sample_weights(noise)
        elif takes_softmax(inputs) and not (inputs.needs_weights or _needs_weights()):
            return softmax_attention(inputs, dropout).transpose(1, 2), None
        else:
            scores = inputs.scores()
            weights = normalize(scores.phi, scores.mask)
    weights = weights.to(inputs.value.dtype)
    weights = F.dropout(weights, dropout) if dropout else weights
    output = weights @ repeat_heads(inputs.value, weights.shape[1])
    return output.transpose(1, 2), weights


def keeps_own_attention(module: nn.Module) -> bool:
    """Whether a module's next call keeps the model's own attention; counts the call if so.

    True if the call is not converted, or if its posterior mean is softmax attention.
    """
    site = getattr(module, CALL_SITE, None)
    samples = site is not None and module.training
    if samples or active_recorder() is not None or _needs_weights():
        return False
    context = active_context()
    return site is None or (context is not None and context.keeps_softmax(site))


def _needs_weights() -> bool:
    context = active_context()
    return context is not None and context.needs_weights


def read_mask(
    mask: Tensor | None, query: Tensor, key: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """Splits a boolean (`True` is kept) or additive mask into a boolean one and a bias.

    Args:
        mask: The mask as given to the call; one for a longer cache is cut.
        query: The queries.
        key: The keys.
    """
    if mask is None:
        return None, None
    mask = mask.to(query.device)
    # Returns the same object where possible: layers share a mask, and results are kept for it.
    if mask.ndim < 4:
        mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    if mask.shape[-1] > key.shape[-2]:
        mask = mask[..., : key.shape[-2]]
    if mask.dtype == torch.bool:
        return mask, None
    return mask > MASKED_BELOW, mask.masked_fill(mask <= MASKED_BELOW, 0.0)


def override_forward(module: nn.Module, forward: Callable[..., Any]) -> Undo:
    """Overrides the forward of a module by a bound method, which copies of the model keep."""

    @functools.wraps(type(module).forward)  # for its signature
    def overriding(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return forward(self, *args, **kwargs)

    module.__dict__[_OWN_FORWARD] = module.__dict__.get("forward")
    module.__dict__["forward"] = types.MethodType(overriding, module)
    return partial(_restore_forward, module)


def _restore_forward(module: nn.Module) -> None:
    before = module.__dict__.pop(_OWN_FORWARD)
    del module.__dict__["forward"]
    if before is not None:
        module.__dict__["forward"] = before


def own_forward(module: nn.Module) -> Callable[..., Any]:
    """The forward that `override_forward` replaced: another tool's or the class's."""
    return module.__dict__[_OWN_FORWARD] or partial(type(module).forward, module)


def call_original(func: Callable[..., Any], args: Any, kwargs: dict[str, Any] | None) -> Any:
    """Calls a function that a torch function mode does not replace."""
    if func is Tensor.unflatten:  # torch.compile cannot trace the method under a mode
        func = torch.unflatten
    return func(*args, **(kwargs or {}))
