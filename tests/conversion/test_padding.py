"""Padding takes no part: not in outputs, not in the upward path, not in the KL."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import babn
from babn.attention.posterior import Posterior
from babn.conversion.override import overriding
from models import CASES, Batch, Case, cases, gap, outputs

MASKS = {
    "input_ids": ("attention_mask", 0),
    "decoder_input_ids": ("decoder_attention_mask", 0),
    "x": ("padding", True),
}
PADDED = [p for p in cases(kinds=("encoder", "decoder", "seq2seq", "torch")) if p.id != "whisper"]


def append(x: Tensor, extra: int, value: Any, left: bool = False) -> Tensor:
    """More positions, at the end or the beginning."""
    more = torch.full((len(x), extra, *x.shape[2:]), value, dtype=x.dtype)
    return torch.cat([more, x] if left else [x, more], dim=1)


def longer(batch: Batch, name: str, extra: int = 3) -> Batch:
    """The same batch with more padding on the right, of a token that means something."""
    mask, padded = MASKS[name]
    more = {name: append(batch[name], extra, 7), mask: append(batch[mask], extra, padded)}
    return batch | more


def kl_values(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    model(**batch)
    return babn.kl_per_layer(model)


def assert_equal(model: nn.Module, short: Batch, long: Batch) -> None:
    """Outputs agree where both have some, and all KLs agree."""
    expected, found = outputs(model, short), outputs(model, long)
    found = [x[tuple(map(slice, y.shape))] for x, y in zip(found, expected, strict=True)]
    assert gap(expected, found) < 1e-5
    torch.testing.assert_close(kl_values(model, long), kl_values(model, short), rtol=1e-4, atol=0)


@pytest.mark.parametrize("case", PADDED)
def test_more_padding_on_the_right_changes_nothing(case: Case) -> None:
    model, batch = case.converted(sigma=0.1, kl_reduction="sum"), case.batch()

    assert_equal(model, batch, longer(batch, "x" if "x" in batch else "input_ids"))


@pytest.mark.parametrize("case", cases("bert", "llama", "handmade"))
def test_more_padding_changes_nothing_with_maps_over_heads(case: Case) -> None:
    model, batch = case.converted(sigma=0.1, upward="heads"), case.batch()

    assert_equal(model, batch, longer(batch, "x" if "x" in batch else "input_ids"))


@pytest.mark.parametrize("case", cases(kinds=("seq2seq",)))
def test_more_padding_of_the_target_changes_nothing(case: Case) -> None:
    model, batch = case.converted(sigma=0.1, kl_reduction="sum"), case.batch()

    assert_equal(model, batch, longer(batch, "decoder_input_ids"))


@pytest.mark.parametrize("case", cases(kinds=("decoder",)))
def test_padding_on_the_left_changes_nothing(case: Case) -> None:
    model = case.converted(sigma=0.1, kl_reduction="sum")
    ids = case.batch()["input_ids"]
    short = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    seen = append(short["attention_mask"], 3, 0, left=True)
    places = (seen.cumsum(-1) - 1).clamp(min=0)
    ids = append(ids, 3, 7, left=True)
    long = {"input_ids": ids, "attention_mask": seen, "position_ids": places}

    assert gap([model(**short).logits], [model(**long).logits[:, 3:]]) < 1e-5
    torch.testing.assert_close(kl_values(model, long), kl_values(model, short), rtol=1e-4, atol=0)


@pytest.mark.thorough
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("case", cases("bert", "gpt2", "multihead", "handmade"))
def test_padding_has_no_gradient(case: Case, reduction: str) -> None:
    model, batch = case.converted(sigma=0.1, kl_reduction=reduction), case.batch()
    gradients = []
    for inputs in (batch, longer(batch, "x" if "x" in batch else "input_ids")):
        model.zero_grad()
        sum(kl_values(model, inputs).values()).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.babn.parameters()]))

    assert gap(gradients[:1], gradients[1:]) < 1e-4


@pytest.mark.parametrize("length", [5, 7])
def test_the_kl_of_cross_attention_counts_every_query(length: int) -> None:
    """Whether source and target happen to be of one length in the dry run or not."""
    case = CASES["torch-transformer"]
    batch = case.batch() | {"target": torch.randn(2, 7, 16)}  # as long as the source
    example = batch | {"target": batch["target"][:, :length]}
    model = babn.convert(case.model(), babn.BeliefConfig.pairs(max_length=16), example)
    posteriors: list[tuple[str, Posterior]] = []
    with overriding(model, posteriors=posteriors):
        model(**batch)

    name = "inner.decoder.layers.*.multihead_attn/0"
    pairs = 4 * 7 * (7 + 5)  # heads, queries, keys of the two sources
    total = dict(posteriors)[name].kl().sum()
    torch.testing.assert_close(babn.kl_per_layer(model)[name], total / pairs)
