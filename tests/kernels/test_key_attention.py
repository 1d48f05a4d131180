"""The kernels for one variable per key, against the reference on the same uniform numbers."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification

import babn
from babn.attention.belief import BeliefConfig
from babn.attention.inputs import Inputs
from babn.attention.keys import KeyBeliefMethod
from babn.attention.method import ChainShape
from babn.attention.noise_source import FixedNoise
from babn.kernels import dispatch, key_inputs
from babn.kernels.launch import Launcher
from babn.kernels.sdpa import attention_with_factors
from models import TEXT, token_batch, without_dropout

Case = tuple[KeyBeliefMethod, Inputs]

NOISE = FixedNoise([7, 8]).at(layer=0, past=0, crossed=False)


def case(
    device: torch.device, queries: int = 20, keys: int = 37, groups: int = 1, masked: bool = False,
    causal: bool = False, size: int = 16, dtype: torch.dtype = torch.float32,
    parameter_sets: tuple[int, ...] = (0,), **settings: Any,
) -> Case:  # fmt: skip
    """Two examples with two heads of keys, which `groups` heads of queries share."""
    torch.manual_seed(1)
    keys, heads = queries if causal else keys, 2 * groups
    method = BeliefConfig(prior_hidden=5, rho=3.0, **settings).build(
        ChainShape(heads, size, parameter_sets, rowwise=causal)
    )
    assert isinstance(method, KeyBeliefMethod)
    with torch.no_grad():
        method.log_shape.fill_(0.3)
        method.energies.copy_(torch.rand(1, heads) * 10 + 10)
        if groups > 1:
            method.energies.copy_(method.energies[:, ::groups].repeat_interleave(groups, 1))
    mask = None
    if masked:
        mask = torch.ones(2, 1, 1, keys, dtype=torch.bool, device=device)
        mask[0, ..., keys // 2 :] = False
    # Heads after tokens in memory, as projections leave them.
    q, k, v = (
        torch.randn(2, n, h, size, device=device, dtype=dtype).transpose(1, 2).requires_grad_()
        for n, h in ((queries, heads), (keys, 2), (keys, 2))
    )
    return method.to(device), Inputs(q, k, v, scale=size**-0.5, mask=mask, causal=causal)


def reference(method: KeyBeliefMethod, inputs: Inputs, level: float) -> tuple[Tensor, Tensor]:
    scores = inputs.without_scores()
    posterior = method(0, scores, None)
    drawn = posterior if level == 1 else posterior.at_level(level)
    log_e = drawn.log_sample(NOISE)
    return attention_with_factors(inputs, log_e, form="bias"), posterior.kl()


def by_kernel(
    method: KeyBeliefMethod, inputs: Inputs, level: float, with_kl: bool
) -> tuple[Tensor, Tensor | None]:
    assert dispatch.takes_key_kernels(inputs)
    request = dispatch.Request(True, with_kl, level)
    shared = key_inputs.key_inputs(method, inputs, request, NOISE)
    output, parts = key_inputs.attend(method, 0, inputs, shared, NOISE)
    return output.transpose(1, 2), None if parts is None else parts.elementwise()


def gradients(
    method: KeyBeliefMethod, inputs: Inputs, output: Tensor, kl: Tensor | None
) -> list[Any]:
    torch.manual_seed(2)
    loss = (output.float() * torch.randn(output.shape).to(output.device)).sum()
    if kl is not None:
        loss = loss + 0.3 * (kl * torch.rand(kl.shape).to(kl.device)).sum()
    wanted = [inputs.query, inputs.key, inputs.value, *method.parameters()]
    return list(torch.autograd.grad(loss, wanted, allow_unused=True))


def compare(method: KeyBeliefMethod, inputs: Inputs, level: float = 1.0, tolerance: float = 1e-4):
    expected, expected_kl = reference(method, inputs, level)
    found, kl = by_kernel(method, inputs, level, True)
    assert kl is not None
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(kl, expected_kl, atol=10 * tolerance, rtol=tolerance)
    pairs = zip(
        gradients(method, inputs, found, kl),
        gradients(method, inputs, expected, expected_kl),
        strict=True,
    )
    for one, other in pairs:
        # relative to the whole tensor: the slope of the truncated moment has an error of 2e-3
        if other is None:  # of another layer: the parameters of all layers are packed together
            assert not one.any()
            continue
        # That of the last bias of the prior's MLP is zero but for rounding.
        assert (one - other).norm() <= 20 * tolerance * other.norm() + 5e-5


@pytest.mark.parametrize("noise", ["truncated", "exact", "truncated-paper"])
def test_output_kl_and_gradients_are_those_of_the_reference(
    device: torch.device, noise: str
) -> None:
    compare(*case(device, noise=noise))


@pytest.mark.parametrize(
    ("groups", "masked", "causal"), [*product([1, 2], [False, True], [False, True])]
)
def test_groups_of_queries_masks_and_causality(
    device: torch.device, groups: int, masked: bool, causal: bool
) -> None:
    compare(*case(device, groups=groups, masked=masked, causal=causal))


@pytest.mark.parametrize(
    ("queries", "keys", "size"),
    [
        (2, 1, 8),
        pytest.param(18, 128, 64, marks=pytest.mark.thorough),
        pytest.param(5, 270, 24, marks=pytest.mark.thorough),
    ],
)
def test_sizes(device: torch.device, queries: int, keys: int, size: int) -> None:
    compare(*case(device, queries, keys, size=size))


@pytest.mark.thorough
@pytest.mark.parametrize(("queries", "causal"), [(9, False), (300, True)])
def test_several_shares_of_keys(device: torch.device, queries: int, causal: bool) -> None:
    compare(*case(device, queries, 300, groups=2, masked=not causal, causal=causal))


def test_parameters_of_one_layer_of_several(device: torch.device) -> None:
    compare(*case(device, parameter_sets=(1, 0, 2)))


def test_noise_levels(device: torch.device) -> None:
    compare(*case(device), level=0.4)


def test_equal_keys_have_the_shape_rho(device: torch.device) -> None:
    method, inputs = case(device)
    same = inputs.key.detach()[:, :, :1].expand_as(inputs.key).clone().requires_grad_()
    compare(method, replace(inputs, key=same))


def test_without_the_kl_the_output_is_the_same(device: torch.device) -> None:
    method, inputs = case(device)
    with_kl, _ = by_kernel(method, inputs, 1.0, True)
    without, _ = by_kernel(method, inputs, 1.0, False)
    assert torch.equal(with_kl, without)
    found = gradients(method, inputs, without, None)
    expected = gradients(method, inputs, reference(method, inputs, 1.0)[0], None)
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        assert one is None or (one - other).norm() <= 2e-3 * other.norm() + 1e-5


def test_rows_without_keys_give_zeros(device: torch.device) -> None:
    method, inputs = case(device, masked=True)
    assert inputs.mask is not None
    inputs.mask[0] = False
    output, kl = by_kernel(method, inputs, 1.0, True)
    assert not output[0].any()
    assert all(each.isfinite().all() for each in gradients(method, inputs, output, kl))


def test_half_precision_is_near_the_reference_in_float32(device: torch.device) -> None:
    # The interpreter has no arithmetic for bfloat16.
    half = torch.bfloat16 if device.type == "cuda" else torch.float16
    method, inputs = case(device, dtype=half)
    q, k, v = (
        x.detach().float().requires_grad_() for x in (inputs.query, inputs.key, inputs.value)
    )
    exact = replace(inputs, query=q, key=k, value=v)
    found, expected = by_kernel(method, inputs, 1.0, True), reference(method, exact, 1.0)
    torch.testing.assert_close(found[0].float(), expected[0], atol=2e-2, rtol=2e-2)
    pairs = zip(gradients(method, inputs, *found), gradients(method, exact, *expected), strict=True)
    for one, other in pairs:
        assert (one.float() - other).norm() <= 2e-2 * other.norm() + 1e-5


def test_calls_that_need_pairs_are_left_to_torch(device: torch.device) -> None:
    _, inputs = case(device)
    pairs = torch.zeros(1, 1, 20, 37, device=device)
    assert not dispatch.takes_key_kernels(replace(inputs, bias=pairs))
    assert not dispatch.takes_key_kernels(replace(inputs, mask=pairs == 0))
    assert not dispatch.takes_key_kernels(replace(inputs, query=inputs.query[:, :, :1]))


@pytest.mark.thorough
def test_programs_have_one_large_index(device: torch.device) -> None:
    # 70,000 heads of all examples: the second index of a grid ends at 65,535.
    method = BeliefConfig(prior_hidden=5).build(ChainShape(2, 16, parameter_sets=(0,)))
    grids = []
    x = torch.empty(35_000, 2, 1, 16, device=device)
    request = dispatch.Request(True, True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Launcher, "__call__", lambda self, grid, *_, **__: grids.append(grid))
        q, k, v = (x.clone().requires_grad_() for _ in range(3))
        inputs = Inputs(q, k, v, scale=0.25)
        shared = key_inputs.key_inputs(method.to(device), inputs, request, NOISE)
        output, _ = key_inputs.attend(method, 0, inputs, shared, NOISE)
        output.sum().backward()
    assert [*map(max, grids)] == [70_000] * 4
    assert {grid[1] for grid in grids} == {1}


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own
def test_compiled_models_give_the_same() -> None:
    torch._inductor.config.fallback_random = True  # the random numbers of eager mode
    config = BertConfig(**{**TEXT, "num_hidden_layers": 2, "num_attention_heads": 2})
    torch.manual_seed(0)
    model = without_dropout(BertForSequenceClassification(config)).cuda()
    model = babn.convert(model, BeliefConfig(kernel="triton")).train()
    batch = {name: x.cuda() for name, x in token_batch(40).items()}
    batch["labels"] = torch.zeros(len(batch["input_ids"]), dtype=torch.long, device="cuda")
    found = []
    for run in (model, torch.compile(model, fullgraph=True)):
        torch.manual_seed(3)
        loss = run(**batch).loss
        found.append([loss, *torch.autograd.grad(loss, [*model.parameters()], allow_unused=True)])
    for x, y in zip(*found, strict=True):
        assert x is None or float((x - y).norm() / (x.norm() + 1e-3)) < 1e-2
