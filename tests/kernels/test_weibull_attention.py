"""Weibull attention by the kernels, against the library's own code in double precision."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.library import opcheck
from weibull_cases import (
    Case,
    arguments_of,
    by_kernel,
    by_library,
    saturating_exp_of_kernels,
    settings_of,
)

from babn.distributions.special import saturating_exp
from babn.kernels import settings as kernel_settings
from babn.kernels.op import pair_attention, part_size, weibull_attention
from babn.kernels.posterior import LARGEST_LOG
from babn.kernels.settings import mask_type

BAM_CASE = Case(fixed_k=3.0, rho=0.0, sigma=0.0, noise="exact", beta=1.0)
"""As BAM is by default: gradients of a row's scores add up to zero."""

CASES = {
    "plain": Case(),
    "grouped-heads": Case(heads=4, groups=2),
    "cross-attention": Case(n=5, m=37, d=12, dv=20),
    "one-query": Case(n=1, m=3, d=1, dv=1),
    "several-tiles": Case(heads=1, n=70, m=35, mask="causal"),
    "causal-in-several-tiles": Case(heads=1, n=80, m=80, mask="causal", bias=True),
    "full-tiles": Case(heads=1, n=64, m=64, d=16, dv=16),
    "full-tiles-and-odd-heads": Case(heads=1, n=16, m=32, d=12, dv=10, bias=True),
    "heads-of-128": Case(heads=1, n=70, m=35, d=128, dv=128, spread=0.1),
    "heads-of-200": Case(heads=1, n=17, m=40, d=200, dv=200, spread=0.1, mask="causal"),
    "heads-of-256": Case(heads=1, n=70, m=35, d=256, dv=256, spread=0.1),
    "full-tiles-and-heads-of-256": Case(heads=1, n=64, m=64, d=256, dv=256, spread=0.1),
    "large-values": Case(heads=1, n=17, m=40, d=8, dv=256),
    "padding": Case(batch=2, heads=1, mask="padding"),
    "causal": Case(mask="causal"),
    "mask-of-heads": Case(mask="heads"),
    "arbitrary-mask": Case(mask="random"),
    "arbitrary-mask-without-kl": Case(mask="random", with_kl=False),
    "arbitrary-mask-constant-prior": Case(mask="random", contextual=False),
    "arbitrary-mask-grouped-heads": Case(heads=2, groups=2, mask="random"),
    "bias": Case(bias=True),
    "bias-and-padding": Case(batch=2, bias=True, mask="padding"),
    "bias-raw-scores": Case(bias=True, mask="random", normalized=False),
    "no-sigma": Case(sigma=0.0),
    "large-sigma": Case(sigma=2.0),
    "large-k": Case(rho=30.0, heads=1, n=70, m=35),
    "large-k-but-for-some": Case(rho=12.0, logits=0.0, heads=1, n=70, m=35),
    "large-k-masked": Case(rho=30.0, mask="random"),
    "large-k-mean-without-kl": Case(rho=30.0, sample=False, with_kl=False),
    "large-k-but-for-some-mean": Case(rho=12.0, logits=0.0, sample=False, with_kl=False),
    "no-rho": Case(rho=0.0, m=4, n=9),
    "no-rho-no-sigma": Case(rho=0.0, sigma=0.0, m=4, n=9),
    "bam": Case(fixed_k=10.0, rho=0.0, sigma=0.0, noise="exact"),
    "bam-constant-prior": Case(fixed_k=2.0, rho=0.0, sigma=0.0, noise="exact", contextual=False),
    "bam-raw-scores": Case(fixed_k=10.0, rho=0.0, sigma=0.0, normalized=False, mask="causal"),
    "bam-balanced": replace(BAM_CASE, n=70, m=35),
    "bam-balanced-full-tiles": replace(BAM_CASE, heads=1, n=64, m=64, d=16, dv=16),
    "bam-balanced-padding": replace(BAM_CASE, batch=2, mask="padding", heads=4, groups=2),
    "bam-balanced-arbitrary-mask": replace(BAM_CASE, mask="random", bias=True),
    "bam-balanced-paper-noise": replace(BAM_CASE, noise="truncated-paper", mask="causal"),
    "bam-balanced-mean": replace(BAM_CASE, sample=False),
    "bam-balanced-without-kl": replace(BAM_CASE, with_kl=False, beta=1.3),
    "fixed-k-with-sigma": Case(fixed_k=3.0, rho=0.0),
    "constant-prior": Case(contextual=False),
    "exact-noise": Case(noise="exact"),
    "paper-noise": Case(noise="truncated-paper"),
    "raw-scores": Case(normalized=False),
    "raw-scores-exact-noise": Case(normalized=False, noise="exact", mask="random"),
    "mean": Case(sample=False),
    "mean-without-kl": Case(sample=False, with_kl=False, mask="random"),
    "mean-exact-noise-raw-scores": Case(sample=False, noise="exact", normalized=False),
    "two-seeds": Case(batch=2, heads=1, seeds=2),
    "long": Case(heads=1, n=24, m=160, d=64, dv=64),
}

# Where k is small, the KL goes with Gamma(1 + 1/k) and multiplies the rounding of k a
# hundredfold; where scores are large, their own rounding is.
HARD_CASES = {
    "extreme-scores": Case(spread=30.0),
    "extreme-raw-scores": Case(spread=30.0, normalized=False),
    "extreme-scores-no-rho": Case(spread=30.0, rho=0.0, sigma=0.0),
    "wide-logits": Case(logits=0.0),
    "very-small-k": Case(logits=-20.0),
    "very-small-k-mean": Case(logits=-20.0, sample=False),
    "very-small-k-exact-noise": Case(logits=-20.0, noise="exact"),
    "very-large-k": Case(logits=20.0),
    "kl-at-its-limit": Case(rho=0.0, mask="causal"),
}

FULL_TILES = Case(heads=2, n=64, m=64, d=16, dv=16)

HALF_CASES = {
    "plain": Case(),
    "large-k": Case(rho=30.0),
    "grouped-heads-causal": Case(groups=2, mask="causal"),
    "bias": Case(bias=True, mask="random"),
    "raw-scores": Case(normalized=False, noise="exact"),
    "bam": Case(fixed_k=10.0, rho=0.0, sigma=0.0),
    "heads-of-128": Case(heads=1, n=70, m=35, d=128, dv=128, spread=0.1),
    "heads-of-256": Case(heads=1, n=70, m=35, d=256, dv=256, spread=0.1),
    "full-tiles": Case(heads=2, n=16, m=32),
}

FULL_CASES = {
    "full-tiles": FULL_TILES,
    "full-tiles-large-k": replace(FULL_TILES, rho=30.0),
    "full-tiles-causal": replace(FULL_TILES, mask="causal"),
    "full-tiles-padding-and-bias": replace(FULL_TILES, batch=2, mask="padding", bias=True),
    "full-tiles-no-sigma": replace(FULL_TILES, sigma=0.0),
    "full-tiles-bam": replace(FULL_TILES, fixed_k=10.0, rho=0.0, sigma=0.0),
}

PARTS = {
    "plain": Case(batch=3, heads=1),
    "two-seeds": Case(batch=4, heads=1, seeds=2),
    "bias-and-padding": CASES["bias-and-padding"],
    "arbitrary-mask-grouped-heads": Case(batch=2, groups=2, mask="random"),
    "causal": Case(batch=2, heads=1, mask="causal"),
    "bam": replace(BAM_CASE, batch=2),
}

# No logits, prior, mask, bias or seeds; k = 2, in mean mode, without KL.
BAM = (*[None] * 6, [0.5, 0.0, 2.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0])


@pytest.fixture(autouse=True)
def divergences_stop_where_those_of_kernels_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("babn.distributions.kl.saturating_exp", saturating_exp_of_kernels)


def error(name: str, value: Tensor, expected: Tensor, whole: bool) -> float:
    """The largest error over the largest number of its row, or of the whole tensor."""
    value, expected = value.double(), expected.double()
    assert value.shape == expected.shape and torch.isfinite(value).all()
    size = expected.abs()
    rows = size if name == "kl_rows" else size.amax(-1, keepdim=True)
    # Some rows have no gradient at all, such as that of a query that sees one key.
    smallest = size.max() if whole else 0.1 * rows.median()
    return float(((value - expected).abs() / rows.clamp(min=smallest + 1e-12)).max())


def errors(case: Case, device: torch.device, whole: bool = False) -> dict[str, float]:
    """How far output, KL and each gradient are off."""
    found, expected = by_kernel(case, device), by_library(case, device)
    if "w2" in found:
        # Biases move all of a softmax's logits: nothing but rounding, next to the weight.
        for each in (found, expected):
            each["w2"] = torch.cat([each["w2"][0], each.pop("b1"), each.pop("b2")])
    return {name: error(name, found[name], expected[name], whole) for name in expected}


ESSENTIAL = ("plain", "grouped-heads", "padding", "causal", "two-seeds")
"""Cases that run in `make test`; the whole grid runs in `make test-all` and on GPUs."""


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=() if name in ESSENTIAL else pytest.mark.thorough)
        for name, case in CASES.items()
    ],
)
def test_kernels_agree_with_the_library(case: Case, device: torch.device) -> None:
    found = errors(case, device)
    # The slope of the log moment in 1/k is right to 1e-3, and comes to the fore in the logits.
    assert found.pop("logits", 0.0) < 1e-3, found
    assert max(found.values()) < 3e-4, found


@pytest.mark.thorough
@pytest.mark.parametrize("case", HARD_CASES.values(), ids=HARD_CASES)
def test_kernels_agree_with_the_library_at_extremes(case: Case, device: torch.device) -> None:
    found = errors(case, device, whole=True)
    assert found.pop("logits", 0.0) < 3e-3, found
    assert max(found.values()) < 1e-3, found


@pytest.mark.thorough
@pytest.mark.parametrize("case", HALF_CASES.values(), ids=HALF_CASES)
def test_kernels_agree_with_the_library_in_float16(case: Case, device: torch.device) -> None:
    found = errors(replace(case, dtype=torch.float16), device)
    assert max(found.values()) < 5e-3, found


@pytest.fixture
def fewer_digits() -> Iterator[None]:
    """Products of float32 may be computed in TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.gpu  # the interpreter keeps all digits
@pytest.mark.parametrize("case", HALF_CASES.values(), ids=HALF_CASES)
def test_kernels_agree_with_the_library_in_tf32(
    case: Case, device: torch.device, fewer_digits: None
) -> None:
    found = errors(case, device)
    # Weights multiply the rounding of scores that are not normalised by their size.
    assert max(found.values()) < (5e-3 if case.normalized else 1e-2), found


@pytest.mark.gpu  # the interpreter has no bfloat16
@pytest.mark.parametrize("case", HALF_CASES.values(), ids=HALF_CASES)
def test_kernels_agree_with_the_library_in_bfloat16(case: Case, device: torch.device) -> None:
    found = errors(replace(case, dtype=torch.bfloat16), device)
    assert max(found.values()) < 4e-2, found


@pytest.mark.gpu  # whose threads load and store tiles themselves
@pytest.mark.parametrize("case", FULL_CASES.values(), ids=FULL_CASES)
def test_whole_tiles_agree_with_the_library_in_half_precision(
    case: Case, device: torch.device
) -> None:
    assert max(errors(replace(case, dtype=torch.float16), device).values()) < 1e-2
    assert max(errors(replace(case, dtype=torch.bfloat16), device).values()) < 4e-2


def test_a_query_that_sees_nothing_gets_zeros(device: torch.device) -> None:
    found = by_kernel(CASES["arbitrary-mask"], device)
    for name in ("output", "kl_rows", "q", "logits"):
        assert not found[name][0, 0, 3].any()
        assert found[name][0, 0, 2].any()


@pytest.mark.thorough
def test_a_masked_key_gets_no_gradient(device: torch.device) -> None:
    found = by_kernel(CASES["padding"], device)
    for name in ("k", "v"):
        assert not found[name][0, :, -5:].any()
        assert found[name][1, :, -5:].any()


def test_divergences_stop_where_the_library_stops_them() -> None:
    limit = saturating_exp(torch.tensor(1e4)).item()
    assert 2.0**LARGEST_LOG.value == pytest.approx(limit, rel=5e-3)


@pytest.mark.thorough
def test_heads_side_by_side_are_read_where_they_lie(device: torch.device) -> None:
    # As projections give them: the axis of heads behind that of tokens.
    generator = torch.Generator().manual_seed(0)
    mixed = torch.randn(1, 19, 3, 2, 8, generator=generator).to(device)
    found = []
    for inputs in (mixed, mixed.transpose(1, 3).contiguous().transpose(1, 3)):
        leaf = inputs.clone(memory_format=torch.preserve_format).requires_grad_()
        q, k, v = (x.transpose(1, 2) for x in leaf.unbind(2))
        output, *_ = weibull_attention(q, k, v, *BAM)
        # The gradient of a sum has no strides of its own.
        found += [output, *torch.autograd.grad(output.sum() + output.square().sum(), leaf)]
    assert torch.equal(found[0], found[2]) and torch.equal(found[1], found[3])


@pytest.mark.thorough
@pytest.mark.parametrize("case", PARTS.values(), ids=PARTS)
def test_gradients_may_be_computed_in_parts(
    case: Case, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = by_kernel(case, device)
    monkeypatch.setattr(kernel_settings, "LARGEST_PART", 1)
    for name, value in by_kernel(case, device).items():
        assert torch.equal(value, expected[name]), name


@pytest.mark.parametrize("maps", [0, 1, 2])
def test_parts_are_as_few_as_fit_and_of_one_size(
    maps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = 2 * 5 * 7 * 4
    largest = "LARGEST_PART_OF_MAPS" if maps else "LARGEST_PART"
    monkeypatch.setattr(kernel_settings, largest, 3 * (kernel_settings.NUMBERS + maps) * example)
    weight = torch.empty(maps * 2, 3) if maps else None
    sizes = [part_size(torch.empty(batch, 2, 5, 1), 7, weight) for batch in range(1, 9)]
    assert sizes == [1, 2, 3, 2, 3, 3, 3, 3]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "largest"),
    [("plain", 2**27), ("plain", 1), ("two-seeds", 1), ("no-rho", 2**27), ("no-sigma", 2**27)],
)
def test_maps_over_heads_may_be_left_to_the_operator(
    name: str, largest: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_settings, "LARGEST_PART_OF_MAPS", largest)
    case = CASES[name]
    generator = torch.Generator().manual_seed(0)
    size = (case.maps * case.heads, case.heads)
    found = []
    for apart in (True, False):
        q, k, v, _, _, *others = arguments_of(case, device)
        generator.manual_seed(0)
        h = torch.rand(case.batch, case.heads, case.n, case.m, generator=generator)
        maps = [
            h,
            torch.randn(size, generator=generator),
            torch.randn(size[0], generator=generator),
        ]
        maps = [x.to(device).requires_grad_() for x in maps]
        if apart:
            mapped = torch.einsum("oh,bhnm->bonm", maps[1], maps[0]) + maps[2][:, None, None]
            both = mapped.unflatten(1, (case.maps, case.heads))
            upward = both.movedim(1, -1).flatten(-2), None
        else:
            upward = maps[0], torch.cat([maps[1], maps[2][:, None]], 1)
        output, kl_rows = weibull_attention(q, k, v, *upward, *others)
        slopes = torch.autograd.grad(output.square().sum() + kl_rows.sum(), [q, k, v, *maps])
        found.append([output.detach(), kl_rows.detach(), *slopes])
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y, atol=1e-4 * float(y.abs().max()), rtol=1e-4)


@pytest.mark.thorough
def test_gradients_of_maps_over_heads_may_take_their_place(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(batch=2, n=16, m=32, dtype=torch.float16)
    q, k, v, _, _, *others = arguments_of(case, device)
    generator = torch.Generator().manual_seed(0)
    h = torch.rand(case.batch, case.heads, case.n, case.m, generator=generator)
    maps = torch.randn(2 * case.heads, case.heads + 1, generator=generator)
    upward = [h.to(device, case.dtype), maps.to(device)]
    leaves = [x.requires_grad_() for x in (q, k, v, *upward)]
    found = []
    for largest in (2**27, 1):
        monkeypatch.setattr(kernel_settings, "LARGEST_PART_OF_MAPS", largest)
        output, kl_rows = weibull_attention(q, k, v, *upward, *others)
        found.append(torch.autograd.grad(output.float().sum() + kl_rows.sum(), leaves))
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("begin", [0, 2])
def test_shape_and_scale_logits_may_begin_anywhere(begin: int, device: torch.device) -> None:
    case = Case(n=16, m=32, dtype=torch.float16)
    q, k, v, logits, _, *others = arguments_of(case, device)
    room = torch.empty(logits.numel() + begin, dtype=logits.dtype, device=device)
    moved = room[begin:].view(logits.shape).copy_(logits.detach()).requires_grad_()
    found = []
    for each in (logits, moved):
        output, kl_rows = weibull_attention(q, k, v, each, None, *others)
        slopes = torch.autograd.grad(output.float().sum() + kl_rows.sum(), [q, each])
        found.append([output, *slopes])
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-4)


CHECKS = ("test_schema", "test_faketensor")


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["plain", "bias", "bam-constant-prior", "arbitrary-mask"])
def test_operator_is_registered_for_compilers(name: str, device: torch.device) -> None:
    opcheck(pair_attention.compiled, arguments_of(CASES[name], device), test_utils=CHECKS)


@pytest.mark.thorough
@pytest.mark.parametrize("largest", [2**27, 1])
def test_operator_with_maps_over_heads_is_registered_for_compilers(
    largest: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_settings, "LARGEST_PART_OF_MAPS", largest)
    case = CASES["two-seeds"]
    q, k, v, *rest = arguments_of(case, device)
    maps = case.maps * case.heads
    sizes = [(case.batch, case.heads, case.n, case.m), (maps, case.heads + 1)]
    upward = [torch.rand(size, device=device).requires_grad_() for size in sizes]
    opcheck(pair_attention.compiled, (q, k, v, *upward, *rest[2:]), test_utils=CHECKS)


@pytest.mark.parametrize("name", CASES)
def test_rows_of_score_gradients_add_up_to_zero_where_it_is_said(name: str) -> None:
    case = CASES[name]
    arguments = arguments_of(case, torch.device("cpu"))
    network, mask, settings = arguments[5], arguments[6], settings_of(case)
    found = settings.complete(settings.prior(network is not None, mask_type(mask)))
    assert found == (name.startswith("bam-balanced") or not case.normalized)
