"""Packs reference modules for the kernels for noise per key, once per forward pass.

In eager mode, launching many small operations takes longer than running them.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor

from babn.attention.inputs import Inputs, repeat_heads
from babn.attention.keys import KeyBeliefMethod, KeyKL
from babn.attention.masking import Mask, keys_seen
from babn.attention.method import AttentionMethod
from babn.attention.noise_source import NoiseLike, NoiseSource
from babn.attention.prior import KeyNetwork
from babn.kernels.dispatch import Request

ALIGNED = 8
"""Numbers in each row of a packed tensor are a multiple of this. Triton compiles a kernel once more
for tensors that do not begin at a multiple of 16 bytes."""


class KeyNoise(NamedTuple):
    """Settings of the variables of keys.

    Attributes:
        rho: Shape of the posterior before learning.
        level: Factor of the noise.
        truncated: Whether the noise is truncated.
        own_moment: Whether the mean factor is that of the truncated noise.
        centred: Whether shapes are relative to the keys of the call.
        with_kl: Whether the KL will be computed.
    """

    rho: float
    level: float
    truncated: bool
    own_moment: bool
    centred: bool
    with_kl: bool


@dataclass(frozen=True)
class KeyInputs:
    """Inputs that the calls of a chain share in one forward pass.

    Attributes:
        noise: Noise settings of calls whose queries all see the same keys.
        parameters: For each call the logarithm of its shape factor, and for the KL the biases and
            weights of the prior's MLP from its last layer to its first: `b2`, `b1`, `w2`, `w1`.
        uniform: Uniform numbers of each call; `None` if they depend on positions, so that each call
            draws its own.
        size: Examples, heads and keys for which `uniform` was drawn.
        mask: The mask of the first call.
        seen: The keys that any query sees under this mask, as numbers.
        attention: `KeyAttention`, whose module is not imported before the first call.
    """

    noise: KeyNoise
    parameters: Sequence[Tensor]
    uniform: Sequence[Tensor] | None
    size: tuple[int, int, int]
    mask: Mask | None
    seen: Tensor | None
    attention: Any


@dataclass(frozen=True)
class KernelKeyKL(KeyKL):
    """The same for kernels, from the scales and logits of each head of keys.

    Attributes:
        groups: Heads of queries for each head of keys.
    """

    groups: int

    def elementwise(self) -> Float[Tensor, "batch head 1 key"]:
        """The KL of each variable; zero at keys that no query sees."""
        from babn.kernels.key_kl import ElementwiseKL

        own_moment = self.noise == "truncated"
        kl: Tensor = ElementwiseKL.apply(self.numbers, self.seen, own_moment, self.beta)
        return repeat_heads(kl, self.groups * kl.shape[1])

    def size(self) -> tuple[Any, ...]:
        """What calls must have in common to be joined."""
        return *super().size(), self.groups


def key_inputs(
    method: AttentionMethod, first: Inputs, request: Request, noise_source: NoiseLike
) -> KeyInputs:
    """The shared inputs of a chain, from its first call.

    Args:
        method: The method.
        first: The first call.
        request: What the calls compute.
        noise_source: Source of the samples' uniform numbers.
    """
    from babn.kernels.key_attention import KeyAttention

    assert isinstance(method, KeyBeliefMethod)
    config, sets = method.config, method.parameter_sets
    noise = KeyNoise(
        config.rho,
        request.level,
        config.noise != "exact",
        config.noise == "truncated",
        True,
        request.with_kl,
    )
    networks: list[Tensor] = []
    nets = cast(Iterable[KeyNetwork], method.prior_nets) if request.with_kl else ()
    for inner, outer in ((net.inner, net.outer) for net in nets):
        networks += outer.bias, inner.bias, outer.weight, inner.weight
    size, uniform = _size(first), None
    if type(noise_source) is NoiseSource:
        uniform = _uniform_of_calls(noise_source, len(sets), size, first.query.device).unbind()
    return KeyInputs(
        noise,
        Packed.apply(sets, method.log_shape, *networks),
        uniform,
        size,
        first.mask,
        _seen(first),
        KeyAttention,
    )


def attend(
    method: AttentionMethod,
    step: int,
    inputs: Inputs,
    shared: KeyInputs,
    noise_source: NoiseLike,
) -> tuple[Float[Tensor, "batch query head dim"], KeyKL | None]:
    """A sample's output of a call, and what its KL is computed from, if requested.

    Args:
        method: The method.
        step: Index of the call in its chain.
        inputs: A call for which `choose` returned `"key kernels"`.
        shared: What `key_inputs` returned for the chain.
        noise_source: Source of the sample's uniform numbers.
    """
    assert isinstance(method, KeyBeliefMethod)
    q, k, v = inputs.query, inputs.key, inputs.value
    if q.stride(-1) != 1 or k.stride(-1) != 1 or v.stride(-1) != 1:
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    batch, heads, keys = size = _size(inputs)
    if shared.uniform is not None and shared.size == size:
        u = shared.uniform[step]
    else:
        like = q.new_empty((batch, heads, 1, keys), dtype=torch.float32)
        u = noise_source.uniform(like, q.shape[2])
    noise, typical = shared.noise, None
    if method.is_rowwise(inputs):
        noise, typical = noise._replace(centred=False), method.energies[method.parameter_sets[step]]
    output, numbers = shared.attention.apply(
        q,
        k,
        v,
        u,
        shared.seen if inputs.mask is shared.mask else _seen(inputs),
        shared.parameters[step],
        typical,
        noise,
        inputs.scale,
        inputs.causal,
    )
    if not noise.with_kl:
        return output, None
    config, seen = method.config, keys_seen(inputs.mask)
    return output, KernelKeyKL(numbers, config.noise, seen, config.beta, heads // k.shape[1])


class Packed(torch.autograd.Function):
    """The parameters of each call as one vector, whose gradients are added up together.

    Takes the parameter set of each call, the log shapes of all sets if there are any, and as many
    tensors of each set.
    """

    @staticmethod
    def forward(
        ctx: Any, sets: Sequence[int], log_shape: Tensor | None, *networks: Tensor
    ) -> tuple[Tensor, ...]:
        """Copies the parameters."""
        count = max(sets) + 1
        kinds = len(networks) // count
        ctx.sets, ctx.shapes = sets, [x.shape for x in networks[:kinds]]
        ctx.dtypes = [x if x is None else x.dtype for x in (log_shape, *networks)]
        stacked = [torch.stack(networks[kind::kinds]).flatten(1) for kind in range(kinds)]
        if log_shape is not None:
            stacked.insert(0, log_shape.unsqueeze(1))
        width = sum(x.shape[1] for x in stacked)
        padding = stacked[0].new_zeros(count, _rounded(width) - width)
        rows = torch.cat([*stacked, padding], 1)[:, :width]
        return tuple(rows[own] for own in sets)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        """Adds the gradients of calls that share a set."""
        count = max(ctx.sets) + 1
        of_set: list[list[Tensor]] = [[] for _ in range(count)]
        for own, grad in zip(ctx.sets, grads, strict=True):
            of_set[own].append(grad)
        total = torch.stack([x[0] if len(x) == 1 else torch.stack(x).sum(0) for x in of_set])
        sizes = [int(ctx.dtypes[0] is not None), *map(math.prod, ctx.shapes)]
        log_shape, *networks = total.split_with_sizes(sizes, 1)
        shaped = [
            x.unflatten(1, shape).unbind() for x, shape in zip(networks, ctx.shapes, strict=True)
        ]
        found = log_shape.squeeze(1), *(x for each in zip(*shaped, strict=True) for x in each)
        return None, *(
            x if x.dtype == dtype else None if dtype is None else x.to(dtype)
            for x, dtype in zip(found, ctx.dtypes, strict=True)
        )


def _size(inputs: Inputs) -> tuple[int, int, int]:
    """Examples, heads and keys of a call."""
    batch, heads, _, _ = inputs.query.shape
    return batch, heads, inputs.key.shape[2]


def _uniform_of_calls(
    source: NoiseSource, calls: int, size: tuple[int, int, int], device: torch.device
) -> Float[Tensor, "call number"]:
    """The uniform numbers of all calls, which a generator for each seed draws at once."""
    batch, heads, keys = size
    count = batch * heads * keys
    shape = calls, _rounded(count)
    if source.seeds is None:
        return torch.rand(shape, dtype=torch.float32, device=device)
    like = torch.empty(batch, calls, heads, keys, dtype=torch.float32, device=device)
    drawn = like.new_empty(shape)
    drawn[:, :count].view(calls, batch, heads, keys).copy_(source.uniform(like).transpose(0, 1))
    return drawn


def _rounded(count: int) -> int:
    """The next multiple of `ALIGNED`."""
    return -(-count // ALIGNED) * ALIGNED


def _seen(inputs: Inputs) -> Tensor | None:
    """The keys that any query sees, as numbers, since compilers do not view booleans as such."""
    if inputs.mask is None:
        return None
    batch, _, keys = _size(inputs)
    return inputs.mask[:, 0, 0].expand(batch, keys).to(torch.uint8).contiguous()
