"""One attention call, from queries, keys and values to outputs, whatever route it came by."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from babn.attention.inputs import Inputs, Scores, repeat_heads
from babn.attention.masking import normalize
from babn.attention.softmax import softmax_attention, takes_softmax
from babn.conversion.hooks import check_not_reentrant
from babn.conversion.pass_stack import active_pass, current_pass
from babn.conversion.passes import Pass
from babn.conversion.recorder import recorder
from babn.conversion.state import Site

MASKED_BELOW = -5e3
"""Additive masks use numbers from -1e4 to minus infinity; real biases stay far above."""

SITE = "_babn_site"


def attend(
    module: nn.Module, route: str, inputs: Inputs
) -> tuple[Float[Tensor, "batch head query dim"], Float[Tensor, "batch head query key"] | None]:
    """Output of an attention call made by `module`, and its weights unless they were never made."""
    site = _chosen(module)
    with torch.autocast(inputs.query.device.type, enabled=False):
        if recorder.calls is None:
            output = _by_torch(inputs) if site is None else _pass_of(site).fused(site, inputs)
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
    """Weights by the module's rule, and how much of the model's dropout to apply to them.

    Calls that take no part in any chain keep their softmax.
    """
    return _weights(module, _chosen(module), route, scores, inputs)


def _weights(
    module: nn.Module, site: Site | None, route: str, scores: Scores, inputs: Inputs
) -> tuple[Float[Tensor, "batch head query key"], float]:
    with torch.autocast(scores.phi.device.type, enabled=False):
        if recorder.calls is not None:
            weights = recorder.record(module, route, scores, inputs.windowed, inputs.crossed)
            return weights, inputs.dropout
        if site is None:
            return normalize(scores.phi, scores.mask), inputs.dropout
        forward_pass = _pass_of(site)
        return forward_pass.weights(site, scores), forward_pass.dropout(inputs)


def _chosen(module: nn.Module) -> Site | None:
    """Where the module's next call belongs; `None` if it keeps softmax."""
    site: Site | None = getattr(module, SITE, None)
    if site is None or recorder.calls is not None or None not in site.places:
        return site
    return None if _pass_of(site).leaves_out(site) else site


def keeps_own_attention(module: nn.Module) -> bool:
    """Whether a module was not chosen, and nobody asks for its weights."""
    return not hasattr(module, SITE) and recorder.calls is None and not _weights_wanted()


def _weights_wanted() -> bool:
    forward_pass = active_pass()
    return forward_pass is not None and forward_pass.needs_weights


def _by_torch(inputs: Inputs) -> Tensor | None:
    """Attention of a layer that was not chosen, by torch's kernels unless weights are wanted."""
    if inputs.needs_weights or _weights_wanted() or not takes_softmax(inputs):
        return None
    return softmax_attention(inputs, inputs.dropout)


def _pass_of(site: Site) -> Pass:
    forward_pass = current_pass(site)
    if not torch.compiler.is_compiling():
        check_not_reentrant(forward_pass)
    return forward_pass


def read_mask(
    mask: Tensor | None, query: Tensor, key: Tensor, causal: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Splits a boolean (`True` takes part) or additive mask into pairs and bias, 4-dimensional.

    Args:
        mask: The mask as given to the call; one made for a longer cache is cut.
        query: The queries.
        key: The keys.
        causal: Whether a query sees only keys up to its own index.
    """
    queries, keys, bias = query.shape[-2], key.shape[-2], None
    if mask is not None:
        mask = mask.to(query.device)
        mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)[..., :keys]
        if mask.dtype != torch.bool:
            bias = mask.masked_fill(mask <= MASKED_BELOW, 0.0)
            mask = mask > MASKED_BELOW
    if causal:
        earlier = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril()
        mask = earlier[None, None] if mask is None else mask & earlier
    return mask, bias
