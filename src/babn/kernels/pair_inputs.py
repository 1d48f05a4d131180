"""Packs reference modules for the kernels for noise over pairs, once for each forward pass.

An eager model spends more time on the calls of many small operations than the GPU on most of them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from babn.attention.bam import BamMethod
from babn.attention.belief import BeliefConfig, BeliefMethod, WeibullEncoder
from babn.attention.inputs import Inputs
from babn.attention.masking import from_ranks, normalize
from babn.attention.method import AttentionMethod, MethodConfig
from babn.attention.noise_source import NoiseLike, NoiseSource
from babn.attention.prior import KeyNetwork
from babn.attention.upward import AxisMap, UpwardStates, masked_softplus, upward_path
from babn.kernels.dispatch import Request
from babn.kernels.key_inputs import Packed
from babn.kernels.settings import Settings


def has_upward_path(config: MethodConfig) -> bool:
    """Whether calls of a method depend on the first call of their chain."""
    return isinstance(config, BeliefConfig) and config.has_upward_path


@dataclass(frozen=True)
class PairInputs:
    """What the calls of a chain with noise over pairs share in a forward pass, or get from it.

    Attributes:
        upward: The upward states.
        maps: For each call its maps over heads, or weight and bias of one map over keys, from its
            state to shape and scale logits, interleaved.
        networks: For each call the prior's MLP.
        seeds: For each call the seeds of its sample.
        numbers: Those of `Settings`, of which the first is the scale of the first call.
        attention: `weibull_attention`, whose module is not imported before the first call.
    """

    upward: UpwardStates | None
    maps: Sequence[tuple[Tensor, ...] | None]
    networks: Sequence[Tensor | None]
    seeds: Sequence[Tensor | None]
    numbers: tuple[float, ...]
    attention: Any


def attend(
    step: int, inputs: Inputs, shared: PairInputs, request: Request
) -> tuple[Float[Tensor, "batch query head valuedim"], Float[Tensor, "batch head query"] | None]:
    """The output of a call by the fused kernel, and the KL of each query's row if requested.

    Args:
        step: Index of the call in its chain.
        inputs: A call for which `choose` returned `"pair kernels"`.
        shared: What `pair_inputs` returned for the chain.
        request: What to compute.
    """
    upward, maps, *over_keys = _shape_and_scale(step, shared)
    output, kl_rows = shared.attention(
        *_operands(inputs), upward, maps, shared.networks[step], inputs.mask, inputs.bias,
        shared.seeds[step], (float(inputs.scale), *shared.numbers[1:]), *over_keys,
    )  # fmt: skip
    return output, kl_rows if request.with_kl else None


def _settings(method: BeliefMethod | BamMethod, scale: float, request: Request) -> Settings:
    """The settings of a call."""
    config = method.config
    if isinstance(config, BeliefConfig):
        rho, fixed_k, sigma, alpha = config.rho, 0.0, config.sigma, 1.0
    else:
        rho, fixed_k, sigma, alpha = 0.0, config.k / request.level, 0.0, config.alpha
    return Settings(
        scale=scale,
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


def pair_inputs(
    method: AttentionMethod, first: Inputs, request: Request, noise_source: NoiseLike
) -> PairInputs:
    """What the calls of a chain share, from its first call.

    Args:
        method: The method.
        first: The first call.
        request: What the calls compute.
        noise_source: Source of the samples' seeds.
    """
    from babn.kernels.op import weibull_attention

    assert isinstance(method, BeliefMethod | BamMethod)
    sets = method.parameter_sets
    nothing: Sequence[Tensor | None] = (None,) * len(sets)
    networks = seeds = nothing
    maps: Sequence[tuple[Tensor, ...] | None] = (None,) * len(sets)
    if request.with_kl and len(method.prior_nets):
        nets = cast(Iterable[KeyNetwork], method.prior_nets)
        layers = [layer for net in nets for layer in (net.inner, net.outer)]
        networks = Packed.apply(sets, None, *[x for f in layers for x in (f.weight, f.bias)])
    if request.sample:
        assert isinstance(noise_source, NoiseSource)
        seeds = noise_source.draw_seeds(first.query.device, len(sets))
    upward = None
    if isinstance(method, BeliefMethod) and (steps := method.upward_maps()):
        upward, packed = _upward_path(method, steps, first)
        maps = tuple(zip(*(for_each_call(each.unbind(), sets) for each in packed), strict=True))
    numbers = tuple(map(float, _settings(method, first.scale, request)))
    return PairInputs(upward, maps, networks, seeds, numbers, weibull_attention)


def for_each_call(packed: Iterable[Tensor], sets: Sequence[int]) -> Sequence[Tensor]:
    """A tensor for each call, from those of the parameter sets.

    Calls of one set get views of one tensor, so that their gradients are summed at once.

    Args:
        packed: The tensor of each set.
        sets: The set of each call.
    """
    views = [
        iter(x.expand(sets.count(own), *x.shape).unbind() if sets.count(own) > 1 else (x,))
        for own, x in enumerate(packed)
    ]
    return tuple(next(views[own]) for own in sets)


def _upward_path(
    method: BeliefMethod, maps: list[AxisMap], first: Inputs
) -> tuple[UpwardStates, list[Tensor]]:
    """The upward states of a chain from its first call, in the precision of the values.

    Also for each parameter set its map to logits: maps over heads, or weight and bias over keys.
    """
    config = method.config
    steps = maps[:1] if all(each is maps[0] for each in maps) else maps[::-1]
    nets = cast(Iterable[WeibullEncoder], method.posterior_nets)
    to_logits = [f for net in nets for f in (net.shape_map, net.scale_map) if f is not None]
    packed = packed_maps([*steps, *to_logits], first.pairs[-1], first.value.dtype)
    each_step, joint = zip(*(x.split([len(steps), len(to_logits)]) for x in packed), strict=True)
    of_sets = [x.unflatten(0, (len(method.posterior_nets), -1)) for x in joint]
    top, mask, rank = method.top(softmax_weights(first), first.mask)
    if config.upward == "keys":
        of_sets = [x.transpose(1, 2) for x in of_sets]  # which interleaves shape and scale
        states = upward_over_keys(top, mask, each_step[0], each_step[1], len(maps))
    elif mask is None or mask.shape[1] == 1:
        # Maps over heads do not mix pairs, so the states of masked pairs are never used.
        from babn.kernels.heads import upward_over_heads

        states = upward_over_heads(top, each_step[0].expand(len(maps), *each_step[0].shape[1:]))
    else:
        states = upward_path(maps, top, mask)[::-1]
    h = UpwardStates(states[::-1], rank)
    return h, [x.flatten(1, 2) for x in of_sets]


def softmax_weights(inputs: Inputs) -> Float[Tensor, "batch head query key"]:
    """Softmax weights in the precision of the values, with which the upward path begins."""
    scores = inputs.scores()
    return normalize(scores.phi, scores.mask).to(inputs.value.dtype)


def _shape_and_scale(step: int, shared: PairInputs) -> tuple[Tensor | None, ...]:
    """Shape and scale logits; or the upward state and its maps over heads; or what logits map."""
    maps = shared.maps[step]
    if shared.upward is None or maps is None:
        return None, None
    h, rank = shared.upward.h[step], shared.upward.rank
    if len(maps) == 1:
        return h, maps[0]
    if rank is None:
        return None, None, h, *maps
    logits = F.linear(h, *maps)
    each = logits.unflatten(-1, (h.shape[-1], -1)).unbind(-1)
    return torch.stack([from_ranks(x, rank) for x in each], -1).flatten(-2), None


def packed_maps(maps: Sequence[AxisMap], keys: int, dtype: torch.dtype) -> list[Tensor]:
    """Weights and biases of maps over keys; of maps over heads, weights with biases as last column.

    Args:
        maps: The maps.
        keys: The number of keys to which maps over keys are cut.
        dtype: The type of the result for maps over keys.
    """
    parameters = [*(each.weight for each in maps), *(each.bias for each in maps)]
    if maps[0].axis == "keys":
        maps[0].check_length(keys)
        return [*PackedMaps.apply(keys, dtype, *parameters)]
    weights, biases = PackedMaps.apply(len(maps[0].bias), maps[0].bias.dtype, *parameters)
    return [torch.cat([weights, biases.unsqueeze(2)], 2)]


class PackedMaps(torch.autograd.Function):
    """Weights and biases of maps, cut to a number of inputs, and their gradients in one piece."""

    @staticmethod
    def forward(ctx: Any, size: int, dtype: torch.dtype, *parameters: Tensor) -> tuple[Tensor, ...]:
        """Copies the parameters: first all weights, then all biases."""
        count = len(parameters) // 2
        ctx.more, ctx.dtype = parameters[0].shape[0] - size, parameters[0].dtype
        rows = [x[:size] for x in parameters]
        weights, biases = torch.stack(rows[:count]), torch.stack(rows[count:])
        return weights[:, :, :size].to(dtype), biases.to(dtype)

    @staticmethod
    def backward(ctx: Any, dweights: Tensor, dbiases: Tensor) -> tuple[Any, ...]:
        """Gradients of all parameters, zero beyond the cut."""
        found = dweights.to(ctx.dtype), dbiases.to(ctx.dtype)
        if ctx.more:
            found = F.pad(found[0], (0, ctx.more) * 2), F.pad(found[1], (0, ctx.more))
        return None, None, *found[0].unbind(), *found[1].unbind()


def _operands(inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values in one precision and with a contiguous last axis."""
    dtype = inputs.value.dtype
    query, key, value = (
        x if x.dtype == dtype and x.stride(-1) == 1 else x.to(dtype).contiguous()
        for x in (inputs.query, inputs.key, inputs.value)
    )
    return query, key, value


class UpwardOverKeys(torch.autograd.Function):
    """The states after each step of the upward path.

    All states are parts of one tensor, behind the first one, so that a product gives the gradients
    of all maps.
    """

    @staticmethod
    def forward(
        ctx: Any, top: Tensor, mask: Tensor | None, weights: Tensor, biases: Tensor, steps: int
    ) -> tuple[Tensor, ...]:
        """Computes the states, and keeps them."""
        states = top.new_empty(steps + 1, *top.shape)
        each = states.unbind()
        each[0].copy_(top)
        hidden = None if mask is None else ~mask
        maps = (x.expand(steps, *x.shape[1:]).unbind() for x in (weights, biases))
        for step, (weight, bias) in enumerate(zip(*maps, strict=True)):
            x = F.linear(each[step], weight, bias)
            F.softplus(x, out=each[step + 1])  # type: ignore[call-arg]
            if hidden is not None:
                each[step + 1].masked_fill_(hidden, 0.0)
        ctx.save_for_backward(states, weights)
        return each[1:]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        r"""Gradients of the first state and of the maps, with the slope $1 - e^{-h}$ of softplus.

        The slope is zero at masked keys.
        """
        states, weights = ctx.saved_tensors
        steps = len(states) - 1
        slopes = states[1:].neg().expm1_().neg_()
        each, maps = slopes.unbind(), weights.expand(steps, *weights.shape[1:]).unbind()
        grad = grads[-1]
        for step in reversed(range(steps)):
            grad = each[step].mul_(grad) @ maps[step]  # from here on the slopes are gradients
            if step:
                grad = grad.add_(grads[step - 1])
        shape = len(weights), -1, states.shape[-1]
        before, after = states[:-1].reshape(shape), slopes.view(shape)
        return grad, None, after.transpose(1, 2) @ before, after.sum(1), None


def upward_over_keys(
    top: Tensor, mask: Tensor | None, weights: Tensor, biases: Tensor, steps: int
) -> list[Tensor]:
    """The states after each step of the upward path, in the precision of `top`.

    Args:
        top: The first state, zero at masked keys.
        mask: The keys that take part.
        weights: The map of each step, or one for all.
        biases: Their biases.
        steps: Number of steps.
    """
    if not torch.compiler.is_compiling():
        return list(UpwardOverKeys.apply(top, mask, weights, biases, steps))
    states = [top]
    maps = (x.expand(steps, *x.shape[1:]).unbind() for x in (weights, biases))
    for weight, bias in zip(*maps, strict=True):
        states.append(masked_softplus(F.linear(states[-1], weight, bias), mask))
    return states[1:]
