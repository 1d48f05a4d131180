"""Small calls of Weibull attention, by the kernels and by the library's own code in float64."""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from small_kernels import draws
from torch import Tensor

from babn.attention.masking import log_normalize, normalize, zero_masked
from babn.distributions import Gamma, Weibull, noise_for, weibull_gamma
from babn.distributions.special import log_softplus
from babn.kernels.op import weibull_attention
from babn.kernels.posterior import LARGEST_LOG
from babn.kernels.settings import Settings

SCALE = 0.5
HIDDEN = 10
NETWORK = ("w1", "b1", "w2", "b2")
Tensors = dict[str, Tensor | None]


@dataclass(frozen=True)
class Case:
    """A call. `logits` is what the upward path is on average, `spread` the size of the queries."""

    batch: int = 1
    heads: int = 2
    groups: int = 1
    n: int = 19
    m: int = 21
    d: int = 8
    dv: int = 8
    rho: float = 3.0
    fixed_k: float = 0.0
    sigma: float = 1e-2
    beta: float = 1.3
    alpha: float = 0.7
    logits: float = 1.0
    spread: float = 1.0
    normalized: bool = True
    sample: bool = True
    noise: str = "truncated"
    with_kl: bool = True
    contextual: bool = True
    mask: str = ""
    bias: bool = False
    seeds: int = 1
    dtype: torch.dtype = torch.float32

    @property
    def maps(self) -> int:
        """How many maps the upward path gives."""
        return (self.rho > 0) + (self.sigma > 0)

    @property
    def logits_shape(self) -> tuple[int, ...]:
        return self.batch, self.heads, self.n, self.maps * self.m


def mask_of(case: Case) -> Tensor | None:
    """A mask; `random` has a row that sees nothing, `heads` differs between heads alone."""
    generator = torch.Generator().manual_seed(1)
    places = torch.arange(case.m)
    if case.mask == "padding":
        mask = (places < torch.tensor([[case.m - 5], [case.m]])[: case.batch])[:, None, None]
    elif case.mask == "causal":
        mask = torch.ones(1, 1, case.n, case.m, dtype=torch.bool).tril()
    elif case.mask == "heads":
        mask = torch.rand(1, case.heads, 1, case.m, generator=generator) > 0.3
    elif case.mask == "random":
        size = (case.batch, case.heads, case.n, case.m)
        mask = torch.rand(size, generator=generator) > 0.4
        mask[0, 0, 3] = False
    else:
        return None
    return mask


def inputs_of(case: Case) -> Tensors:
    """Random tensors in double precision, rounded to the case's type."""
    generator = torch.Generator().manual_seed(0)

    def normal(*size: int, dtype: torch.dtype = case.dtype) -> Tensor:
        drawn = torch.randn(size, generator=generator, dtype=torch.float64)
        return drawn.to(dtype).double()

    key_heads = case.heads // case.groups
    keys = (case.batch, key_heads, case.m)
    tensors = {
        "q": (normal(case.batch, case.heads, case.n, case.d) * case.spread).to(case.dtype),
        "k": normal(*keys, case.d),
        "v": normal(*keys, case.dv),
        "logits": (normal(*case.logits_shape) + case.logits).to(case.dtype) if case.maps else None,
        "bias": normal(1, case.heads, case.n, case.m) if case.bias else None,
    }
    # Units are on or off whatever the key: near their kinks gradients would be matters of rounding.
    bias = normal(HIDDEN, dtype=torch.float32)
    network = {
        "w1": normal(HIDDEN, case.d, dtype=torch.float32) * 0.2 / case.d**0.5,
        "b1": bias + bias.sign(),
        "w2": normal(1, HIDDEN, dtype=torch.float32) * 0.3,
        "b2": normal(1, dtype=torch.float32),
    }
    return tensors | (network if case.with_kl and case.contextual else dict.fromkeys(network))


def readings(inputs: Tensors, output: Tensor, kl_rows: Tensor | None) -> Tensors:
    """Output, KL of each row, and gradients of a random combination of the two."""
    generator = torch.Generator().manual_seed(2)
    weights = torch.randn(output.shape, generator=generator).to(output)
    value = (output * weights).sum()
    found = {"output": output.detach()}
    if kl_rows is not None:
        value = value + (kl_rows * torch.rand(kl_rows.shape, generator=generator).to(kl_rows)).sum()
        found["kl_rows"] = kl_rows.detach()
    leaves = {name: x for name, x in inputs.items() if x is not None}
    slopes = torch.autograd.grad(value, list(leaves.values()))
    return found | dict(zip(leaves, slopes, strict=True))


def arguments_of(case: Case, device: torch.device) -> tuple[Any, ...]:
    """What the operator is called with."""
    drawn = inputs_of(case)
    network = [drawn.pop(name) for name in NETWORK]
    inputs = {name: _leaf(x, device, case.dtype) for name, x in drawn.items()}
    packed = None if network[0] is None else torch.cat([x.flatten() for x in network])
    inputs["network"] = _leaf(packed, device, torch.float32)
    mask = mask_of(case)
    return (
        *(inputs[name] for name in ("q", "k", "v", "logits")),
        None,
        inputs["network"],
        None if mask is None else mask.to(device),
        inputs["bias"],
        _seeds(case, device) if case.sample else None,
        list(map(float, settings_of(case))),
    )


def settings_of(case: Case) -> Settings:
    """The settings of the operator."""
    return Settings(
        SCALE, case.rho, case.fixed_k, case.sigma, case.beta, case.alpha, case.normalized,
        case.sample, case.noise != "exact", case.noise == "truncated", case.with_kl,
    )  # fmt: skip


def by_kernel(case: Case, device: torch.device) -> Tensors:
    """What the kernels give."""
    arguments = arguments_of(case, device)
    q, k, v, logits, _, network, _, bias = arguments[:8]
    output, kl_rows = weibull_attention(*arguments)
    output = output.transpose(1, 2)
    inputs = {"q": q, "k": k, "v": v, "logits": logits, "bias": bias, "network": network}
    found = readings(inputs, output, kl_rows if case.with_kl else None)
    if network is not None:
        shapes = [inputs_of(case)[name].shape for name in NETWORK]
        pieces = found.pop("network").split([shape.numel() for shape in shapes])
        named = zip(NETWORK, pieces, shapes, strict=True)
        found |= {name: piece.view(shape) for name, piece, shape in named}
    return found


def by_library(case: Case, device: torch.device) -> Tensors:
    """What the library's other code gives in double precision for the kernels' noise."""
    inputs = {name: _leaf(x, device, torch.float64) for name, x in inputs_of(case).items()}
    mask = mask_of(case)
    mask = None if mask is None else mask.to(device)
    phi = _scores(case, inputs, mask)
    posterior = _posterior(case, phi, inputs["logits"])
    log_s = posterior.log_mean
    if case.sample:
        size = (case.batch, case.heads, case.n, case.m)
        noise = draws(_seeds(case, device), size, case.noise != "exact")[1]
        log_s = posterior.log_sample_from(noise)
    output = normalize(log_s, mask) @ inputs["v"].repeat_interleave(case.groups, 1)
    kl_rows = None
    if case.with_kl:
        prior = Gamma(_log_alpha(case, phi, inputs, mask), case.beta)
        kl_rows = zero_masked(weibull_gamma(posterior, prior), mask).sum(-1)
    return readings(inputs, output, kl_rows)


def saturating_exp_of_kernels(x: Tensor) -> Tensor:
    """`saturating_exp` with the limit that it has in float32: the value is also the slope."""
    value = x.detach().clamp(max=LARGEST_LOG.value * math.log(2)).exp()
    return value * (1 + x - x.detach())


def _scores(case: Case, inputs: Tensors, mask: Tensor | None) -> Tensor:
    key = inputs["k"].repeat_interleave(case.groups, 1)
    phi = inputs["q"] @ key.transpose(-1, -2) * SCALE
    if inputs["bias"] is not None:
        phi = phi + inputs["bias"]
    return log_normalize(phi, mask) if case.normalized else zero_masked(phi, mask)


def _posterior(case: Case, phi: Tensor, logits: Tensor | None) -> Weibull:
    maps = (None,) if logits is None else logits.unflatten(-1, (-1, case.maps)).unbind(-1)
    if case.fixed_k > 0:
        k = torch.full_like(phi, case.fixed_k)
    else:
        k = phi.clamp(max=30).exp()
        if case.rho > 0:
            k = k + case.rho * F.softplus(maps[0])
        k = k.clamp(min=0.1)
    log_moment = noise_for("weibull", case.noise).log_moment(k.reciprocal())
    if case.sigma == 0:
        return Weibull(k, phi - log_moment, case.noise, phi)
    log_from_h = log_softplus(maps[-1]) + math.log(case.sigma)
    log_lam = torch.logaddexp(log_from_h, phi - log_moment)
    return Weibull(k, log_lam, case.noise, log_lam + log_moment)


def _log_alpha(case: Case, phi: Tensor, inputs: Tensors, mask: Tensor | None) -> Tensor:
    if inputs["w1"] is None:
        return torch.full_like(phi, math.log(case.alpha))
    hidden = F.relu(F.linear(inputs["k"], inputs["w1"], inputs["b1"]))
    values = F.linear(hidden, inputs["w2"], inputs["b2"]).squeeze(-1)
    rows = values.repeat_interleave(case.groups, 1)[:, :, None].expand_as(phi)
    return log_normalize(rows, mask)


def _leaf(x: Tensor | None, device: torch.device, dtype: torch.dtype) -> Any:
    return None if x is None else x.to(device, dtype, copy=True).requires_grad_()


def _seeds(case: Case, device: torch.device) -> Tensor:
    return torch.arange(case.seeds, device=device) * 77 + 5
