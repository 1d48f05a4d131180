"""Computes one intercepted attention call, whatever route it was intercepted on."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from babn.attention.inputs import Inputs, Scores, repeat_heads
from babn.attention.masking import normalize
from babn.attention.softmax import softmax_attention, takes_softmax
from babn.conversion.context_stack import active_context, current_context
from babn.conversion.forward_context import ForwardContext
from babn.conversion.hooks import check_not_reentrant
from babn.conversion.recorder import recorder
from babn.conversion.state import CallSite

MASKED_BELOW = -5e3
"""Additive masks use values from -1e4 to minus infinity; biases are far above."""

CALL_SITE = "_babn_site"


def attend(
    module: nn.Module, route: str, inputs: Inputs
) -> tuple[Float[Tensor, "batch head query dim"], Float[Tensor, "batch head query key"] | None]:
    """Output of an attention call of `module`, and its weights if they were computed."""
    site = _call_site(module)
    with torch.autocast(inputs.query.device.type, enabled=False):
        if recorder.calls is None:
            output = _by_torch(inputs) if site is None else _context_of(site).fused(site, inputs)
            if output is not None:
                return output, None
        scores = inputs.scores()
    weights, dropout = _weights(module, site, route, scores, inputs)
    weights = weights.to(inputs.value.dtype)
    weights = F.dropout(weights, dropout) if dropout else weights
    return weights @ repeat_heads(inputs.value, weights.shape[1]), weights


def attention_weights(
    module: nn.Module, route: str, scores: Scores, inputs: Inputs
) -> tuple[Float[Tensor, "batch head query key"], float]:
    """Weights by the module's method, and the rate of the model's dropout to apply to them.

    Calls that are in no chain keep their softmax.
    """
    return _weights(module, _call_site(module), route, scores, inputs)


def _weights(
    module: nn.Module, site: CallSite | None, route: str, scores: Scores, inputs: Inputs
) -> tuple[Float[Tensor, "batch head query key"], float]:
    with torch.autocast(scores.phi.device.type, enabled=False):
        if recorder.calls is not None:
            weights = recorder.record(module, route, scores, inputs.windowed, inputs.crossed)
            return weights, inputs.dropout
        if site is None:
            return normalize(scores.phi, scores.mask), inputs.dropout
        context = _context_of(site)
        return context.weights(site, scores), context.dropout(inputs)


def _call_site(module: nn.Module) -> CallSite | None:
    """The call site of a module; `None` if its next call keeps softmax."""
    site: CallSite | None = getattr(module, CALL_SITE, None)
    if site is None or recorder.calls is not None or None not in site.places:
        return site
    return None if _context_of(site).leaves_out(site) else site


def keeps_own_attention(module: nn.Module) -> bool:
    """Whether the next call of a module is that of the model as it was; counts it if so.

    It is if the module is not converted, or at a posterior mean that is softmax attention.
    """
    site, context = getattr(module, CALL_SITE, None), active_context()
    if recorder.calls is not None or (context is not None and context.needs_weights):
        return False
    if site is None:
        return True
    return context is not None and not module.training and context.passes_softmax(site)


def _by_torch(inputs: Inputs) -> Tensor | None:
    """Attention of a layer that is not converted, by torch's kernels unless weights are needed."""
    context = active_context()
    needed = inputs.needs_weights or (context is not None and context.needs_weights)
    if needed or not takes_softmax(inputs):
        return None
    return softmax_attention(inputs, inputs.dropout)


def _context_of(site: CallSite) -> ForwardContext:
    context = current_context(site)
    if not torch.compiler.is_compiling():
        check_not_reentrant(context)
    return context


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
    mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)[..., : key.shape[-2]]
    if mask.dtype == torch.bool:
        return mask, None
    return mask > MASKED_BELOW, mask.masked_fill(mask <= MASKED_BELOW, 0.0)
