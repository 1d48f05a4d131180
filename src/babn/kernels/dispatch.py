"""Chooses the fused kernels for an attention call, and packs the reference module for them.

The modules of `babn.attention` define the methods. The functions here take such a module and a
call, and compute the same by Triton kernels, which store no tensor of query-key pairs for each
operation. Triton is imported at the first call.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from os import environ
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from babn.attention.bam import BamConfig, BamMethod
from babn.attention.belief import BeliefConfig, BeliefMethod, UpwardStates, WeibullEncoder
from babn.attention.inputs import Inputs
from babn.attention.masking import Mask, from_ranks, is_rowwise
from babn.attention.method import AttentionMethod, MethodConfig
from babn.attention.noise_source import NoiseSource
from babn.attention.upward import AxisMap, upward_path
from babn.kernels.settings import Settings

LARGEST_HEAD = 256
"""Largest head size with kernels."""

WIDEST_PRODUCTS = 2
"""Bytes of the numbers for which GPUs use the kernels over keys; they have not been measured for
wider ones."""


@dataclass(frozen=True)
class Request:
    """What a call has to compute.

    Attributes:
        sample: A sample, or else the posterior mean.
        with_kl: Whether to compute the KL too.
        noise_source: Source of the seeds of the sample.
        level: Factor of the noise of the sample.
    """

    sample: bool
    with_kl: bool
    noise_source: NoiseSource
    level: float = 1.0


@dataclass(frozen=True)
class PackedStates(UpwardStates):
    """Upward states with what the kernels compute from them.

    Attributes:
        logits: Shape and scale logits of each layer, interleaved by key; the states are then empty.
        joint: Weight and bias of the maps to shape and scale, as one map for each layer.
    """

    logits: list[Float[Tensor, "batch head query logit"]] | None = None
    joint: list[tuple[Tensor, Tensor]] | None = None


def has_kernels(config: MethodConfig) -> bool:
    """Whether there are kernels for a method."""
    if isinstance(config, BeliefConfig):
        return config.noise_over == "pairs"
    return isinstance(config, BamConfig) and config.family == "weibull"


def supports_levels(config: MethodConfig) -> bool:
    """Whether the kernels of a method support noise levels other than 1."""
    return isinstance(config, BamConfig)


def constant_under_compile(function: Any) -> Any:
    """Marks a function whose result compilers take as a constant.

    Sets what `torch.compiler.assume_constant_result` sets, which imports torch's compiler and, with
    it, Triton.
    """
    function._dynamo_marked_constant = True
    return function


def interpreted() -> bool:
    """Whether kernels run through Triton's interpreter, as in tests on a CPU."""
    return environ.get("TRITON_INTERPRET") == "1"


@cache
def has_triton() -> bool:
    """Whether Triton is installed."""
    return find_spec("triton") is not None


@cache
def is_recent(device: torch.device) -> bool:
    """Whether a GPU supports the instructions of the kernels."""
    nvidia = torch.version.cuda is not None
    return nvidia and torch.cuda.get_device_capability(device) >= (8, 0)


@constant_under_compile
def has_tensor_descriptors(device: torch.device) -> bool:
    """Whether a GPU loads blocks of matrices by descriptors, or kernels are interpreted."""
    if device.type != "cuda":
        return interpreted()
    return torch.cuda.get_device_capability(device) >= (9, 0)


@constant_under_compile
def why_no_kernels(device: torch.device, forced: bool) -> str | None:
    """Why no call on a device can use the kernels, or `None` if calls can."""
    if not has_triton():
        return "triton is not installed"
    if device.type == "cuda" and not is_recent(device):
        return "kernels need an NVIDIA GPU from Ampere (8.0) on"
    if device.type != "cuda" and not (forced and interpreted()):
        return f"the model is on {device.type}, not on a CUDA device"
    return None


def why_not_triton(inputs: Inputs, forced: bool) -> str | None:
    """Why a call cannot use the kernels, or `None` if it can."""
    dtype, size = inputs.value.dtype, max(inputs.key.shape[-1], inputs.value.shape[-1])
    if dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"there is none for {dtype}"
    if size > LARGEST_HEAD:
        return f"there is none for heads of size {size}, only up to {LARGEST_HEAD}"
    if inputs.softcap is not None:
        return "there is none for scores with a softcap"
    return why_no_kernels(inputs.query.device, forced)


def attend(
    rule: AttentionMethod,
    step: int,
    inputs: Inputs,
    upward: UpwardStates | None,
    request: Request,
) -> tuple[Float[Tensor, "batch head query valuedim"], Float[Tensor, "batch head query"] | None]:
    """The output of a call by the fused kernel, and the KL of each query's row if requested.

    Args:
        rule: The method; one for which `has_kernels` holds.
        step: Index of the call in its chain.
        inputs: The call.
        upward: What `upward_states` returned for the chain.
        request: What to compute.
    """
    from babn.kernels.op import weibull_attention

    assert isinstance(rule, BeliefMethod | BamMethod)
    config = rule.config
    if isinstance(rule, BeliefMethod):
        rho, fixed_k, sigma, alpha = rule.config.rho, 0.0, rule.config.sigma, 1.0
        maps = _shape_and_scale(rule.encoder(step), step, upward)
    else:
        rho, fixed_k, sigma, alpha = 0.0, rule.config.k / request.level, 0.0, rule.config.alpha
        maps = (None, None, None)
    network: tuple[Tensor | None, ...] = (None,) * 4
    if request.with_kl and len(rule.prior_nets):
        prior = rule.prior_net(step)
        network = (prior.inner.weight, prior.inner.bias, prior.outer.weight, prior.outer.bias)
    settings = Settings(
        scale=inputs.scale,
        rho=rho,
        fixed_k=fixed_k,
        sigma=sigma,
        beta=config.beta,
        alpha=alpha,
        normalized=config.scores == "normalized",
        sample=request.sample,
        truncated=config.noise != "exact",
        own_moment=config.noise == "truncated",
        with_kl=request.with_kl,
    )
    query, key, value = _operands(inputs)
    seeds = request.noise_source.draw_seeds(query.device) if request.sample else None
    output, kl_rows, *_ = weibull_attention(
        query, key, value, *maps, *network, inputs.mask, inputs.bias, seeds, *settings
    )
    return output, kl_rows if request.with_kl else None


def upward_states(rule: AttentionMethod, first: Inputs) -> UpwardStates | None:
    """The upward states of a chain from its first call, in the precision of the queries.

    Args:
        rule: The method.
        first: The first call of the chain.
    """
    if not isinstance(rule, BeliefMethod) or not (maps := rule.upward_maps()):
        return None
    config = rule.config
    if config.upward == "heads" and (first.mask is None or first.mask.shape[1] == 1):
        # Maps over heads do not mix pairs, so the states of masked pairs are never used.
        return UpwardStates(_over_heads(maps, first), None, config.upward_share)
    top, mask, rank = rule.top(softmax_weights(first), first.mask)
    if config.upward == "keys" and config.upward_rank == 0 and supports_products(top, mask):
        encoders = [rule.encoder(step) for step in range(len(rule.parameter_sets))]
        to_logits = [_maps_to_logits(encoder) for encoder in encoders]
        if not torch.is_grad_enabled():
            joint = _joint_weights(to_logits, top) if rank is None else None
            states = _over_keys(maps, top, mask)
            return PackedStates(states, rank, config.upward_share, joint=joint)
        if rank is None and config.upward_share == 1:
            return PackedStates([], None, logits=_logits_over_keys(maps, to_logits, top, mask))
    return UpwardStates(upward_path(maps, top, mask), rank, config.upward_share)


def softmax_weights(inputs: Inputs) -> Float[Tensor, "batch head query key"]:
    """Softmax weights in the precision of the values, with which the upward path begins."""
    from babn.kernels.softmax import softmax_weights

    query, key, _ = _operands(inputs)
    return softmax_weights(query, key, inputs.mask, inputs.bias, inputs.scale)


def supports_products(top: Float[Tensor, "batch head query key"], mask: Mask | None) -> bool:
    """Whether there are kernels for the upward path over keys from such a tensor."""
    from babn.kernels.upward_keys import ALIGNED, LARGEST_BLOCK, MOST_KEYS

    _, heads, queries, keys = top.shape
    seen = mask is None or (not is_rowwise(mask) and heads * queries >= LARGEST_BLOCK)
    fits = seen and keys % ALIGNED == 0 and keys <= MOST_KEYS and top.numel() > 0
    narrow = top.element_size() <= WIDEST_PRODUCTS or not top.is_cuda
    return fits and narrow and has_tensor_descriptors(top.device)


def _over_heads(maps: list[AxisMap], first: Inputs) -> list[Tensor]:
    """States of the upward path over heads from a chain's first call."""
    from babn.kernels.upward_heads import upward_over_heads

    weights = torch.stack([each.weight for each in reversed(maps)])
    biases = torch.stack([each.bias for each in reversed(maps)])
    query, key, _ = _operands(first)
    states: list[Tensor] = upward_over_heads(
        query, key, first.mask, first.bias, first.scale, weights, biases
    )
    return states[::-1]


def _over_keys(maps: list[AxisMap], top: Tensor, mask: Mask | None) -> list[Tensor]:
    """States of the upward path over keys, without gradients."""
    from babn.kernels.upward_keys import upward_over_keys

    weights, biases = _stacked([[each] for each in reversed(maps)], top)
    states: list[Tensor] = upward_over_keys(top, weights, biases, mask)
    return states[::-1]


def _logits_over_keys(
    maps: list[AxisMap], to_logits: list[list[AxisMap]], top: Tensor, mask: Mask | None
) -> list[Tensor]:
    """Shape and scale logits of each layer of an upward path over keys, interleaved by key."""
    from babn.kernels.upward_keys import upward_logits_over_keys

    weights, biases = _stacked([[each] for each in reversed(maps)], top)
    found = upward_logits_over_keys(top, weights, biases, *_stacked(to_logits[::-1], top), mask)
    logits: list[Tensor] = found[: len(maps)]
    return logits[::-1]


def _shape_and_scale(
    encoder: WeibullEncoder, step: int, upward: UpwardStates | None
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Shape and scale logits; or the upward state, weight and bias of the maps over heads."""
    maps = _maps_to_logits(encoder)
    if not maps or upward is None:
        return None, None, None
    logits, joint = None, None
    if isinstance(upward, PackedStates):
        logits, joint = upward.logits, upward.joint
    if logits is not None:
        return logits[step], None, None
    h = upward.at(step)
    if encoder.config.upward == "heads":
        return h, torch.cat([each.weight for each in maps]), torch.cat([each.bias for each in maps])
    if joint is not None:
        return F.linear(h, *joint[step]), None, None
    if upward.rank is None:
        return joint_map(maps, h), None, None
    in_order = [from_ranks(each(h), upward.rank) for each in maps]
    return torch.stack(in_order, -1).flatten(-2), None, None


def _maps_to_logits(encoder: WeibullEncoder) -> list[AxisMap]:
    """The maps from a state to shape and scale, as far as they exist."""
    return [each for each in (encoder.shape_map, encoder.scale_map) if each is not None]


def joint_map(maps: Sequence[AxisMap], h: Float[Tensor, "batch head query key"]) -> Tensor:
    """Several maps over keys in one product, their results interleaved by key."""
    if not maps[0].rank:
        return F.linear(h, *_joint_weight(maps, h))
    keys = h.shape[-1]
    maps[0].check_length(keys)
    bias = torch.stack([each.bias[:keys] for each in maps], 1).flatten().to(h.dtype)
    inner = torch.cat([each.inner[:, :keys] for each in maps]).to(h.dtype)
    outer = torch.block_diag(*(each.outer[:keys] for each in maps)).to(h.dtype)
    outer = outer.unflatten(0, (len(maps), keys)).transpose(0, 1).flatten(0, 1)
    return F.linear(F.linear(h, inner), outer, bias)


def _joint_weight(maps: Sequence[AxisMap], h: Tensor) -> tuple[Tensor, Tensor]:
    """Weight and bias of several full maps over the keys of `h`, as one map."""
    keys = h.shape[-1]
    maps[0].check_length(keys)
    weight = torch.stack([each.weight[:keys, :keys] for each in maps], 1).flatten(0, 1)
    bias = torch.stack([each.bias[:keys] for each in maps], 1).flatten()
    return weight.to(h.dtype), bias.to(h.dtype)


def _joint_weights(maps: Sequence[Sequence[AxisMap]], h: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Joint maps of all layers; those that layers share are built once."""
    found: list[tuple[Tensor, Tensor]] = []
    for index, own in enumerate(maps):
        same = (i for i in range(index) if all(a is b for a, b in zip(maps[i], own, strict=True)))
        known = next(same, None)
        found.append(_joint_weight(own, h) if known is None else found[known])
    return found


def _stacked(maps: Sequence[Sequence[AxisMap]], h: Tensor) -> tuple[Tensor, Tensor]:
    """Weights and biases of the joint maps of all layers, stacked."""
    weights, biases = zip(*_joint_weights(maps, h), strict=True)
    return torch.stack(weights), torch.stack(biases)


def _operands(inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values in one precision and with a contiguous last axis."""
    query, key, value = (
        x if x.stride(-1) == 1 else x.contiguous()
        for x in (each.to(inputs.value.dtype) for each in (inputs.query, inputs.key, inputs.value))
    )
    return query, key, value
