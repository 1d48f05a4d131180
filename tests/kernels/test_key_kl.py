"""The kernels for the KL of noise per key, against the reference in double precision."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification

import babn
from babn.attention.belief import BeliefConfig
from babn.attention.inputs import repeat_heads
from babn.attention.keys import LARGEST_K, SMALLEST_K, KeyKL
from babn.distributions import Weibull
from babn.distributions.noise import NoiseName
from babn.kernels.key_inputs import KernelKeyKL
from babn.kernels.launch import Launcher
from models import TEXT, token_batch, without_dropout

ERROR = {"exact": 2e-6, "truncated": 1e-5, "truncated-paper": 2e-6}
"""Of each KL, relative to its size beyond 1; that of gradients is relative to the whole tensor."""


def as_reference(parts: KernelKeyKL) -> KeyKL:
    """The same call for the reference."""
    scale, logits = parts.numbers.unbind()
    loc = Weibull.with_mean_one(scale, parts.noise).loc
    numbers = torch.stack(
        [repeat_heads(x, parts.groups * x.shape[1]) for x in (scale, loc, logits)]
    )
    return KeyKL(numbers, parts.noise, parts.seen, parts.beta)


def reference(parts: KernelKeyKL) -> Tensor:
    """The KL of each variable, in the type of its numbers."""
    return as_reference(parts).elementwise()


def case(
    device: torch.device, keys: int = 37, noise: NoiseName = "exact", masked: bool = False,
    groups: int = 1, beta: float = 1.0, spread: float = 1.0, seed: int = 1,
) -> KernelKeyKL:  # fmt: skip
    """Scales over their whole range, and logits with a standard deviation of `spread`."""
    torch.manual_seed(seed)
    scale = torch.logspace(0, 1, 4 * keys, LARGEST_K / SMALLEST_K) / LARGEST_K
    scale = scale[torch.randperm(4 * keys)].view(2, 2, 1, keys)
    numbers = torch.stack([scale, spread * torch.randn(2, 2, 1, keys)]).to(device)
    seen = None
    if masked:
        seen = torch.rand(2, 1, 1, keys, device=device) < 0.6
        seen[0, ..., 0] = True
    return KernelKeyKL(numbers.requires_grad_(), noise, seen, beta, groups)


def gradient(parts: KernelKeyKL, kl: Tensor) -> Tensor:
    """The gradient in logarithms of scales and in logits, with a weight for each variable."""
    torch.manual_seed(2)
    weights = torch.rand(kl.shape, dtype=torch.float64).to(kl.device)
    [found] = torch.autograd.grad((kl * weights).sum(), parts.numbers)
    return torch.stack([found[0] * parts.numbers[0].detach(), found[1]]).double()


def compare(parts: KernelKeyKL) -> None:
    error = ERROR[parts.noise]
    found = parts.elementwise()
    expected = reference(replace(parts, numbers=parts.numbers.double()))
    torch.testing.assert_close(found.double(), expected, atol=error, rtol=error)
    pairs = zip(gradient(parts, found), gradient(parts, expected), strict=True)
    for one, other in pairs:
        assert (one - other).norm() <= 1e-5 * other.norm() + 1e-6


@pytest.mark.parametrize("noise", ERROR)
@pytest.mark.parametrize(
    ("keys", "masked", "groups"),
    [(1, False, 1), (37, True, 1), (128, False, 2), (130, True, 3), (2100, True, 1)],
)
def test_kl_and_gradients_are_those_in_double_precision(
    device: torch.device, noise: NoiseName, keys: int, masked: bool, groups: int
) -> None:
    compare(case(device, keys, noise, masked, groups))


@pytest.mark.parametrize("noise", ERROR)
@pytest.mark.parametrize(("beta", "spread"), [(0.2, 1.0), (7.0, 1.0), (1.0, 10.0), (1.0, 60.0)])
def test_rates_and_priors_that_are_far_from_uniform(
    device: torch.device, noise: NoiseName, beta: float, spread: float
) -> None:
    compare(case(device, noise=noise, beta=beta, spread=spread))


def test_examples_may_share_a_mask(device: torch.device) -> None:
    parts = case(device, masked=True)
    assert parts.seen is not None
    compare(replace(parts, seen=parts.seen[:1]))
    compare(replace(parts, seen=parts.seen[:, :, :, :1].expand(-1, -1, -1, 37)))


def test_masked_keys_have_no_kl_and_no_gradient(device: torch.device) -> None:
    parts = case(device, masked=True, groups=2)
    assert parts.seen is not None
    parts.seen[0] = False
    kl = parts.elementwise()
    assert kl.isfinite().all() and not kl[~parts.seen.expand_as(kl)].any()
    slopes = gradient(parts, kl)
    hidden = ~parts.seen.expand(2, 2, 1, 37)
    assert slopes.isfinite().all() and not slopes[:, hidden].any()
    assert slopes[:, ~hidden].any()


@pytest.mark.parametrize("noise", ERROR)
def test_a_huge_kl_saturates_as_that_of_the_reference(
    device: torch.device, noise: NoiseName
) -> None:
    parts = case(device, noise=noise, beta=1e30)
    found, expected = parts.elementwise(), reference(parts)
    assert expected.max() > 1e25
    torch.testing.assert_close(found, expected, atol=0, rtol=1e-4)
    assert gradient(parts, found).isfinite().all()


@pytest.mark.parametrize("masks", ["none", "one", "several"])
def test_calls_are_computed_together_as_one_by_one(device: torch.device, masks: str) -> None:
    calls = [case(device, masked=masks != "none", groups=2, seed=seed) for seed in (1, 2, 3)]
    if masks == "one":
        calls = [replace(each, seen=calls[0].seen) for each in calls]
    expected = torch.cat([each.elementwise() for each in calls])
    found = KeyKL.joined(calls).elementwise()
    assert torch.equal(found, expected)
    numbers = [each.numbers for each in calls]
    slopes = [torch.autograd.grad(kl.square().sum(), numbers) for kl in (found, expected)]
    for one, other in zip(*slopes, strict=True):
        assert torch.equal(one, other)


def test_calls_with_other_groups_are_not_joined(device: torch.device) -> None:
    parts = case(device)
    assert parts.size() == replace(parts, beta=1.0).size()
    others = replace(parts, groups=2), as_reference(parts)
    assert len({each.size() for each in (parts, *others)}) == 3


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("padding", "weight"), [pytest.param(0, 1.0, marks=pytest.mark.thorough), (7, 0.3)]
)
def test_losses_and_gradients_of_models(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, padding: int, weight: float
) -> None:
    config = BertConfig(**{**TEXT, "num_hidden_layers": 2, "num_attention_heads": 2})
    torch.manual_seed(0)
    model = without_dropout(BertForSequenceClassification(config)).to(device)
    model = babn.convert(model, BeliefConfig(kernel="triton", rho=3.0)).train()
    babn.set_kl_weight(model, weight)
    batch = {name: x.to(device) for name, x in token_batch(16, padding).items()}
    batch["labels"] = torch.zeros(len(batch["input_ids"]), dtype=torch.long, device=device)

    def step() -> dict[str, Tensor]:
        torch.manual_seed(3)
        loss = model(**batch).loss
        parameters = dict(model.named_parameters())
        found = torch.autograd.grad(loss, [*parameters.values()], allow_unused=True)
        kl = {name: each.detach() for name, each in babn.kl_per_layer(model).items()}
        slopes = dict(zip(parameters, found, strict=True))
        return kl | {"loss": loss.detach()} | {k: x for k, x in slopes.items() if x is not None}

    launches = Counter[str]()
    launch = Launcher.__call__

    def counting(launcher: Launcher, *arguments: Any) -> None:
        launches[launcher.kernel.fn.__name__] += 1
        launch(launcher, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Launcher, "__call__", counting)
        found = step()
    assert launches["kl_forward"] == launches["kl_backward"] == 1
    monkeypatch.setattr(KernelKeyKL, "elementwise", reference)
    expected = step()
    assert found.keys() == expected.keys() and len(found) > 40
    for name, x in expected.items():
        assert (found[name] - x).norm() <= 1e-5 * x.norm() + 1e-6, name
