"""Attention with one factor per key: the forms agree, and make no tensor over pairs."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from babn.attention.inputs import Inputs, repeat_heads
from babn.attention.masking import normalize
from babn.kernels.sdpa import FORMS, WIDE_FROM, Form, attention_with_factors, best_form

PADDING = (torch.arange(6) < torch.tensor([[6], [4]]))[:, None, None]

CALLS = {
    "plain": {},
    "padded": {"mask": PADDING},
    "causal": {"causal": True},
    "causal and padded": {"causal": True, "mask": PADDING},
    "pairs": {"mask": torch.ones(1, 1, 6, 6, dtype=torch.bool).tril()},
    "bias": {"bias": torch.randn(1, 4, 6, 6, generator=torch.Generator().manual_seed(0))},
    "all": {
        "bias": torch.randn(1, 4, 6, 6, generator=torch.Generator().manual_seed(0)),
        "mask": PADDING,
        "causal": True,
    },
}


def made(
    key_heads: int = 4, queries: int = 6, keys: int = 6, **call: object
) -> tuple[Inputs, Tensor]:
    torch.manual_seed(0)
    query = torch.randn(2, queries, 4, 5).transpose(1, 2)
    key, value = (torch.randn(2, keys, key_heads, 5).transpose(1, 2) for _ in range(2))
    log_e = torch.randn(2, 4, 1, keys)
    query, key, value, log_e = (x.requires_grad_() for x in (query, key, value, log_e))
    return Inputs(query, key, value, scale=0.7, **call), log_e


def expected(inputs: Inputs, log_e: Tensor) -> Tensor:
    scores = inputs.scores()
    return normalize(scores.phi + log_e, scores.mask) @ repeat_heads(inputs.value, 4)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("key_heads", [4, 2, 1])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_every_form_is_the_same_attention(call: dict, key_heads: int, form: Form) -> None:
    inputs, log_e = made(key_heads, **call)
    tensors = inputs.query, inputs.key, inputs.value, log_e
    outputs = [expected(inputs, log_e), attention_with_factors(inputs, log_e, form=form)]
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-4, atol=1e-5)
    weight = torch.randn_like(outputs[0])
    first, second = (torch.autograd.grad((x * weight).sum(), tensors) for x in outputs)
    torch.testing.assert_close(second, first, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("key_heads", [4, 2])
def test_one_query_with_a_cache(key_heads: int, form: Form) -> None:
    inputs, log_e = made(key_heads, queries=1)
    torch.testing.assert_close(
        attention_with_factors(inputs, log_e, form=form),
        expected(inputs, log_e),
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [3, 40])
def test_values_may_be_narrower_or_wider_than_keys(size: int, form: Form) -> None:
    inputs, log_e = made()
    inputs = replace(inputs, value=torch.randn(2, 4, 6, size))
    torch.testing.assert_close(
        attention_with_factors(inputs, log_e, form=form),
        expected(inputs, log_e),
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.parametrize("form", FORMS)
def test_half_precision_is_about_as_exact_as_attention_itself(form: Form) -> None:
    inputs, log_e = made(keys=200, queries=50)
    half = replace(
        inputs,
        query=inputs.query.bfloat16(),
        key=inputs.key.bfloat16(),
        value=inputs.value.bfloat16(),
    )
    wide = replace(half, query=half.query.float(), key=half.key.float(), value=half.value.float())
    found = attention_with_factors(half, log_e, form=form).float()
    torch.testing.assert_close(found, expected(wide, log_e), rtol=0.02, atol=0.01)


def test_extreme_factors_are_finite_in_every_form() -> None:
    inputs, _ = made()
    log_e = torch.zeros(2, 4, 1, 6)
    log_e[..., 0] = -170.0
    for form in FORMS:
        assert attention_with_factors(inputs, log_e, form=form).isfinite().all(), form


def test_a_bias_is_used_where_it_makes_no_tensor_over_pairs() -> None:
    for name, call in CALLS.items():
        inputs, log_e = made(**call)
        found = best_form(inputs, log_e.detach())
        assert found == ("bias" if name in ("plain", "padded") else "wide"), name
        assert best_form(inputs, log_e) == "wide"  # its gradient would be one
    inputs, log_e = made(queries=1)
    assert best_form(inputs, log_e) == "bias"
    long = Inputs(*(torch.zeros(1, 1, WIDE_FROM, 8) for _ in range(3)), scale=1.0)
    assert best_form(long, torch.zeros(1, 1, 1, WIDE_FROM)) == "wide"
