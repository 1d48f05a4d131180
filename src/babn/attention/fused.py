"""Attention calls computed whole, without a tensor of query-key pairs."""

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from os import environ
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from babn.attention.inputs import Inputs
from babn.attention.masking import Mask, is_rowwise
from babn.attention.noise_source import NoiseSource
from babn.distributions.noise import NoiseName

LARGEST_HEAD = 256

WIDEST_PRODUCTS = 2
"""Bytes of the numbers that GPUs take so; blocks of larger ones have not been measured."""


@dataclass(frozen=True)
class Request:
    """What is wanted of a fused call.

    Attributes:
        sample: A sample, or else the posterior mean.
        with_kl: Whether the divergence is wanted too.
        noise_source: Where the sample's noise comes from.
        level: What the sample's noise is multiplied by.
    """

    sample: bool
    with_kl: bool
    noise_source: NoiseSource
    level: float = 1.0

    def seeds(self, device: torch.device) -> Tensor | None:
        """One seed for each block of the batch that has its own source of noise."""
        return self.noise_source.draw_seeds(device) if self.sample else None


@dataclass(frozen=True)
class FusedResult:
    """Output of a fused call, and the divergence of each query's row."""

    output: Float[Tensor, "batch head query valuedim"]
    kl_rows: Float[Tensor, "batch head query"] | None


@dataclass(frozen=True, kw_only=True)
class FusedPosterior:
    """The Weibull posterior and gamma prior of a call, as numbers.

    Attributes:
        rho: Weight of the upward path in the shape; 0 for none.
        fixed_k: The shape, where it is one number; 0 otherwise.
        sigma: Weight of the upward path in the scale; 0 for none.
        beta: Rate of the prior.
        alpha: Shape of the prior, where it is one number.
        normalized: Whether scores are normalised over keys.
        noise: The noise and the mean that belongs to it.
    """

    rho: float = 0.0
    fixed_k: float = 0.0
    sigma: float = 0.0
    beta: float = 1.0
    alpha: float = 1.0
    normalized: bool = True
    noise: NoiseName = "truncated"


@dataclass(frozen=True)
class HeadLift:
    """Maps over heads that are still to be applied: the upward state, weight and bias."""

    h: Float[Tensor, "batch head query key"]
    weight: Float[Tensor, "out head"]
    bias: Float[Tensor, " out"]


@dataclass(frozen=True)
class PriorNetwork:
    """The two layers with which a prior reads keys, ReLU between them."""

    w1: Float[Tensor, "hidden dim"]
    b1: Float[Tensor, " hidden"]
    w2: Float[Tensor, "1 hidden"]
    b2: Float[Tensor, "1"]


def weibull_attention(
    inputs: Inputs,
    posterior: FusedPosterior,
    request: Request,
    lift: Tensor | HeadLift | None,
    prior: PriorNetwork | None,
) -> FusedResult:
    """A call by the Triton kernels.

    Args:
        inputs: The call.
        posterior: Its distribution.
        request: What is wanted of it.
        lift: The upward path's maps for shape and scale, side by side for each key, or still to be
            applied over heads.
        prior: What makes the prior's shapes of the keys; `None` if they are one number.
    """
    from babn.kernels import op

    query, key, value = _operands(inputs)
    maps = (lift.h, lift.weight, lift.bias) if isinstance(lift, HeadLift) else (lift, None, None)
    layers = (None,) * 4 if prior is None else (prior.w1, prior.b1, prior.w2, prior.b2)
    output, kl_rows, *_ = op.weibull_attention(
        query,
        key,
        value,
        *maps,
        *layers,
        inputs.mask,
        inputs.bias,
        request.seeds(query.device),
        inputs.scale,
        posterior.rho,
        posterior.fixed_k,
        posterior.sigma,
        posterior.beta,
        posterior.alpha,
        posterior.normalized,
        request.sample,
        posterior.noise != "exact",
        posterior.noise == "truncated",
        request.with_kl,
    )
    return FusedResult(output, kl_rows if request.with_kl else None)


def softmax_weights(inputs: Inputs) -> Float[Tensor, "batch head query key"]:
    """Softmax weights in the precision of the values, with which the upward path begins."""
    from babn.kernels.top import softmax_weights as kernel

    query, key, _ = _operands(inputs)
    return kernel(query, key, inputs.mask, inputs.bias, inputs.scale)


def climb_over_heads(
    first: Inputs, weights: Tensor, biases: Tensor
) -> list[Float[Tensor, "batch head query key"]]:
    """The upward path over heads from a chain's first call: states, maps in the order of steps."""
    from babn.kernels.climb import climb

    query, key, _ = _operands(first)
    states: list[Tensor] = climb(query, key, first.mask, first.bias, first.scale, weights, biases)
    return states


def takes_products(top: Float[Tensor, "batch head query key"], mask: Mask | None) -> bool:
    """Whether kernels have the products of the upward path over keys for such numbers."""
    from babn.kernels.keys import ALIGNED, LARGEST_BLOCK, MOST_KEYS

    _, heads, queries, keys = top.shape
    seen = mask is None or (not is_rowwise(mask) and heads * queries >= LARGEST_BLOCK)
    fits = seen and keys % ALIGNED == 0 and keys <= MOST_KEYS and top.numel() > 0
    narrow = top.element_size() <= WIDEST_PRODUCTS or not top.is_cuda
    return fits and narrow and has_blocks(top.device)


def climb_over_keys(
    top: Float[Tensor, "batch head query key"], weights: Tensor, biases: Tensor, mask: Mask | None
) -> list[Float[Tensor, "batch head query key"]]:
    """The upward path over keys without gradients: states, maps in the order of steps."""
    from babn.kernels.keys import climb_over_keys

    states: list[Tensor] = climb_over_keys(top, weights, biases, mask)
    return states


def climb_and_lift(
    top: Float[Tensor, "batch head query key"],
    weights: Tensor,
    biases: Tensor,
    lift_weights: Tensor,
    lift_biases: Tensor,
    mask: Mask | None,
) -> list[Tensor]:
    """The upward path over keys: what each state gives to shape and scale."""
    from babn.kernels.keys import climb_and_lift

    found: list[Tensor] = climb_and_lift(top, weights, biases, lift_weights, lift_biases, mask)
    return found[: len(found) // 2]


def _operands(inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values in one precision and with a contiguous last axis."""
    dtype = inputs.value.dtype
    query, key, value = (x.to(dtype) for x in (inputs.query, inputs.key, inputs.value))
    return with_unit_stride(query), with_unit_stride(key), with_unit_stride(value)


def interpreted() -> bool:
    """Whether kernels run through Triton's interpreter, which tests on a CPU do."""
    return environ.get("TRITON_INTERPRET") == "1"


@cache
def has_triton() -> bool:
    """Whether kernels can be compiled."""
    return find_spec("triton") is not None


@cache
def is_recent(device: torch.device) -> bool:
    """Whether a GPU has the instructions that kernels are written in."""
    nvidia = torch.version.cuda is not None
    return nvidia and torch.cuda.get_device_capability(device) >= (8, 0)


@torch.compiler.assume_constant_result
def has_blocks(device: torch.device) -> bool:
    """Whether a GPU loads blocks of matrices by itself, or kernels are interpreted."""
    if device.type != "cuda":
        return interpreted()
    return torch.cuda.get_device_capability(device) >= (9, 0)


@torch.compiler.assume_constant_result
def why_no_kernels(device: torch.device, forced: bool) -> str | None:
    """What keeps all calls on a device from the kernels, or `None` if nothing does."""
    if not has_triton():
        return "triton is not installed"
    if device.type == "cuda" and not is_recent(device):
        return "kernels need an NVIDIA GPU from Ampere (8.0) on"
    if device.type != "cuda" and not (forced and interpreted()):
        return f"the model is on {device.type}, not on a CUDA device"
    return None


def why_not_triton(inputs: Inputs, forced: bool) -> str | None:
    """What keeps a call from the kernels, or `None` if nothing does."""
    dtype, heads = inputs.value.dtype, max(inputs.key.shape[-1], inputs.value.shape[-1])
    if dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"there is none for {dtype}"
    if heads > LARGEST_HEAD:
        return f"there is none for heads of size {heads}, only up to {LARGEST_HEAD}"
    if inputs.softcap is not None:
        return "there is none for scores with a softcap"
    return why_no_kernels(inputs.query.device, forced)


def takes_softmax(inputs: Inputs) -> bool:
    """Whether torch's own attention can compute a call."""
    return inputs.softcap is None and (inputs.mask is None or inputs.bias is None)


def softmax_attention(inputs: Inputs, dropout: float = 0.0) -> Tensor:
    """Softmax attention by torch's own kernels, which take a mask or a bias."""
    mask = inputs.mask if inputs.bias is None else inputs.bias.to(inputs.query.dtype)
    grouped: dict[str, Any] = {}
    if inputs.query.shape[1] != inputs.key.shape[1]:
        grouped["enable_gqa"] = True
    return F.scaled_dot_product_attention(
        inputs.query, inputs.key, inputs.value, mask, dropout, scale=inputs.scale, **grouped
    )


def with_unit_stride(x: Tensor) -> Tensor:
    """A tensor whose last axis is contiguous, as kernels read it."""
    return x if x.stride(-1) == 1 else x.contiguous()
