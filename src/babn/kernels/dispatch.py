"""Chooses how an attention call is computed, and packs reference modules for the kernels.

The modules of `babn.attention` define the methods. `choose` selects their implementation for a
call: the reference, torch's attention or Triton kernels. `attend` and `attend_by_keys` take a
reference module and a call, and compute the same by kernels, which store no tensor of query-key
pairs for each operation. Triton is imported at the first such call.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from os import environ
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from babn.attention.bam import BamConfig, BamMethod
from babn.attention.belief import BeliefConfig, BeliefMethod, UpwardStates, WeibullEncoder
from babn.attention.inputs import Inputs
from babn.attention.keys import SMALLEST_K, KeyBeliefMethod, KeyKL, keys_seen
from babn.attention.masking import from_ranks, is_rowwise, normalize
from babn.attention.method import AttentionMethod, MethodConfig
from babn.attention.noise_source import NoiseLike, NoiseSource
from babn.attention.prior import KeyNetwork
from babn.attention.upward import AxisMap, upward_path
from babn.errors import UnsupportedAttentionError
from babn.kernels.sdpa import takes_softmax
from babn.kernels.settings import Settings

LARGEST_HEAD = 256
"""Largest head size with kernels."""


Implementation = Literal["reference", "softmax", "factors", "key kernels", "pair kernels"]
"""How a call is computed: by the modules of `babn.attention`, by torch's attention, by torch's
attention with a factor per key, or by the kernels for noise per key or over pairs."""


@dataclass(frozen=True)
class Request:
    """What the calls of a forward pass compute.

    Attributes:
        sample: A sample, or else the posterior mean.
        with_kl: Whether to compute the KL too.
        level: Factor of the noise of the sample.
        fixed_noise: Whether the noise belongs to a text, and not to a forward pass.
    """

    sample: bool
    with_kl: bool
    level: float = 1.0
    fixed_noise: bool = False


def is_softmax(config: MethodConfig, request: Request) -> bool:
    """Whether torch's attention may compute the calls of a forward pass."""
    return config.kernel != "reference" and config.is_softmax(request.sample, request.with_kl)


def choose(
    config: MethodConfig,
    inputs: Inputs,
    request: Request,
    dropout: float = 0.0,
    recurrent: bool = False,
) -> Implementation:
    """The implementation of a call whose weights are not needed.

    Args:
        config: Configuration of the method.
        inputs: The call.
        request: What to compute.
        dropout: Probability with which weights are dropped.
        recurrent: Whether the module attends once for each word of a text.

    Raises:
        UnsupportedAttentionError: `kernel="triton"`, and kernels cannot compute the call.
    """
    if config.kernel == "reference":
        return "reference"
    if is_softmax(config, request) and takes_softmax(inputs):
        return "softmax"
    if config.biases_keys and inputs.softcap is None:
        fits = request.sample and not dropout and not recurrent and takes_key_kernels(inputs)
        return "key kernels" if fits and _use_triton(config, inputs) else "factors"
    if recurrent or not _use_triton(config, inputs, why_not_pairs(config, request, dropout)):
        return "reference"
    return "pair kernels"


def _use_triton(config: MethodConfig, inputs: Inputs, reason: str | None = None) -> bool:
    """Whether there is no reason against a kernel; raises if kernels are required."""
    forced = config.kernel == "triton"
    reason = reason or why_not_triton(inputs, forced)
    if forced and reason is not None:
        raise UnsupportedAttentionError(
            f'kernel="triton", but {reason}. Use kernel="auto" to do without it.'
        )
    return reason is None


def why_not_pairs(config: MethodConfig, request: Request, dropout: float) -> str | None:
    """Why the kernels for noise over pairs cannot compute a forward pass, or `None`."""
    if reason := why_not_method(config):
        return reason
    if request.sample and request.fixed_noise:
        return "kernels draw new noise in each forward pass, and the noise is fixed here"
    levels = isinstance(config, BamConfig) and not request.with_kl
    if request.sample and request.level != 1 and not levels:
        return f"kernels draw noise at level 1, and the level is {request.level:g}"
    return "the model drops attention weights" if dropout else None


def why_not_method(config: MethodConfig) -> str | None:
    """Why the kernels for noise over pairs cannot compute a method, or `None` if they can."""
    pairs = isinstance(config, BeliefConfig) and config.noise_over == "pairs"
    if not pairs and not (isinstance(config, BamConfig) and config.family == "weibull"):
        return f"method {config.name!r} has no kernel"
    if isinstance(config, BeliefConfig) and config.smallest_k != SMALLEST_K:
        return "kernels have a fixed floor of the shape, and smallest_k is another one"
    return None


def describe(config: MethodConfig, device: torch.device) -> str:
    """The implementation of a method on a device, in words, with the reason for the reference."""
    if config.is_softmax(sample=True, with_kl=True):
        return "torch (scaled_dot_product_attention)"
    if config.kernel == "reference":
        return "reference (as configured)"
    missing = why_no_kernels(device, config.kernel == "triton")
    if config.biases_keys:
        torch_ = "torch (scaled_dot_product_attention with a bias on keys)"
        return torch_ if missing else "triton for samples, torch for the posterior mean"
    reason = why_not_method(config) or missing
    return "triton" if reason is None else f"reference ({reason})"


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


def takes_key_kernels(inputs: Inputs) -> bool:
    """Whether the kernels for noise per key apply: several queries, and no mask of pairs."""
    sizes = inputs.query.shape[-1], inputs.key.shape[-1], inputs.value.shape[-1]
    return (
        inputs.bias is None
        and inputs.pairs[-2] > 1
        and len({*sizes}) == 1
        and not is_rowwise(inputs.mask)
    )


def attend_by_keys(
    method: AttentionMethod, step: int, inputs: Inputs, request: Request, noise_source: NoiseLike
) -> tuple[Float[Tensor, "batch head query dim"], KeyKL | None]:
    """A sample's output of a call with one variable per key, and what its KL is computed from.

    Args:
        method: The method.
        step: Index of the call in its chain.
        inputs: A call for which `choose` returned `"key kernels"`.
        request: What to compute.
        noise_source: Source of the sample's uniform numbers.
    """
    from babn.kernels.key_draw import DrawSettings
    from babn.kernels.key_op import Call, KeyAttention

    assert isinstance(method, KeyBeliefMethod)
    batch, heads, queries, keys = inputs.pairs
    config, own = method.config, method.parameter_sets[step]
    q, k, v = (
        x if x.stride(-1) == 1 else x.contiguous() for x in (inputs.query, inputs.key, inputs.value)
    )
    like = q.new_empty((batch, heads, 1, keys), dtype=torch.float32)
    seen = None
    if inputs.mask is not None:
        # Compilers do not view booleans as numbers.
        seen = inputs.mask[:, 0, 0].expand(batch, keys).to(torch.uint8).contiguous()
    network = cast(KeyNetwork, method.prior_nets[own])
    inner, outer = network.inner, network.outer
    noise = DrawSettings(
        config.rho,
        request.level,
        config.noise != "exact",
        config.noise == "truncated",
        not method.is_rowwise(inputs),
        request.with_kl,
    )
    output, numbers = KeyAttention.apply(
        q, k, v, noise_source.key_uniform(like, queries), seen, method.log_shape,
        method.energies, inner.weight, inner.bias, outer.weight, outer.bias,
        Call(own, inputs.scale, inputs.causal, noise),
    )  # fmt: skip
    output = output.transpose(1, 2)
    if not request.with_kl:
        return output, None
    if (groups := heads // k.shape[1]) > 1:
        numbers = numbers.repeat_interleave(groups, 2)
    return output, KeyKL(numbers, config.noise, keys_seen(inputs.mask), config.beta)


def attend(
    method: AttentionMethod,
    step: int,
    inputs: Inputs,
    upward: UpwardStates | None,
    request: Request,
    noise_source: NoiseLike,
) -> tuple[Float[Tensor, "batch head query valuedim"], Float[Tensor, "batch head query"] | None]:
    """The output of a call by the fused kernel, and the KL of each query's row if requested.

    Args:
        method: The method.
        step: Index of the call in its chain.
        inputs: A call for which `choose` returned `"pair kernels"`.
        upward: What `upward_states` returned for the chain.
        request: What to compute.
        noise_source: Source of the sample's seeds.
    """
    from babn.kernels.op import weibull_attention

    assert isinstance(method, BeliefMethod | BamMethod)
    config = method.config
    if isinstance(method, BeliefMethod):
        rho, fixed_k, sigma, alpha = method.config.rho, 0.0, method.config.sigma, 1.0
        maps = _shape_and_scale(method.encoder(step), step, upward)
    else:
        rho, fixed_k, sigma, alpha = 0.0, method.config.k / request.level, 0.0, method.config.alpha
        maps = (None, None, None)
    network: tuple[Tensor | None, ...] = (None,) * 4
    if request.with_kl and len(method.prior_nets):
        prior = method.prior_net(step)
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
    seeds = None
    if request.sample:
        assert isinstance(noise_source, NoiseSource)
        seeds = noise_source.draw_seeds(query.device)
    output, kl_rows, *_ = weibull_attention(
        query,
        key,
        value,
        *maps,
        *network,
        inputs.mask,
        inputs.bias,
        seeds,
        list(map(float, settings)),
    )
    return output, kl_rows if request.with_kl else None


def upward_states(method: AttentionMethod, first: Inputs) -> UpwardStates | None:
    """The upward states of a chain from its first call, in the precision of the queries.

    Args:
        method: The method.
        first: The first call of the chain.
    """
    if not isinstance(method, BeliefMethod) or not (maps := method.upward_maps()):
        return None
    config = method.config
    top, mask, rank = method.top(softmax_weights(first), first.mask)
    if config.upward == "heads" and (mask is None or mask.shape[1] == 1):
        # Maps over heads do not mix pairs, so the states of masked pairs are never used.
        return UpwardStates(_over_heads(maps, top), None, config.upward_share)
    return UpwardStates(upward_path(maps, top, mask), rank, config.upward_share)


def softmax_weights(inputs: Inputs) -> Float[Tensor, "batch head query key"]:
    """Softmax weights in the precision of the values, with which the upward path begins."""
    scores = inputs.scores()
    return normalize(scores.phi, scores.mask).to(inputs.value.dtype)


def _over_heads(maps: list[AxisMap], top: Tensor) -> list[Tensor]:
    """States of the upward path over heads."""
    from babn.kernels.heads import upward_over_heads

    weights = torch.stack([each.weight for each in reversed(maps)])
    biases = torch.stack([each.bias for each in reversed(maps)])
    states: list[Tensor] = upward_over_heads(top, weights, biases)
    return states[::-1]


def _shape_and_scale(
    encoder: WeibullEncoder, step: int, upward: UpwardStates | None
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Shape and scale logits; or the upward state, weight and bias of the maps over heads."""
    maps = _maps_to_logits(encoder)
    if not maps or upward is None:
        return None, None, None
    h = upward.at(step)
    if encoder.config.upward == "heads":
        return h, torch.cat([each.weight for each in maps]), torch.cat([each.bias for each in maps])
    if upward.rank is None:
        return joint_map(maps, h), None, None
    in_order = [from_ranks(each(h), upward.rank) for each in maps]
    return torch.stack(in_order, -1).flatten(-2), None, None


def _maps_to_logits(encoder: WeibullEncoder) -> list[AxisMap]:
    """The maps from a state to shape and scale, as far as they exist."""
    return [each for each in (encoder.shape_map, encoder.scale_map) if each is not None]


def joint_map(maps: Sequence[AxisMap], h: Float[Tensor, "batch head query key"]) -> Tensor:
    """Several maps over keys in one product, their results interleaved by key."""
    keys = h.shape[-1]
    maps[0].check_length(keys)
    bias = torch.stack([each.bias[:keys] for each in maps], 1).flatten().to(h.dtype)
    if not maps[0].rank:
        weight = torch.stack([each.weight[:keys, :keys] for each in maps], 1).flatten(0, 1)
        return F.linear(h, weight.to(h.dtype), bias)
    inner = torch.cat([each.inner[:, :keys] for each in maps]).to(h.dtype)
    outer = torch.block_diag(*(each.outer[:keys] for each in maps)).to(h.dtype)
    outer = outer.unflatten(0, (len(maps), keys)).transpose(0, 1).flatten(0, 1)
    return F.linear(F.linear(h, inner), outer, bias)


def _operands(inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values in one precision and with a contiguous last axis."""
    query, key, value = (
        x if x.stride(-1) == 1 else x.contiguous()
        for x in (each.to(inputs.value.dtype) for each in (inputs.query, inputs.key, inputs.value))
    )
    return query, key, value
