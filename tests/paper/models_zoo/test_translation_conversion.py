"""The translation model's attention, converted."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from translation_cases import (
    IGNORED,
    METHODS,
    SOURCES,
    TARGETS,
    batch,
    converted,
    padded,
    sources,
    translator,
)

import babn
from babn.conversion.override import overriding
from babn_paper.models.translation_parts import TranslationOutput

pytestmark = pytest.mark.thorough

STOCHASTIC = ("bam", "belief", "heads")


def kl_of(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    model(**inputs)
    return babn.belief_kl(model)


def weights(model: Any, target: list[int], source: list[int] = SOURCES[0]) -> Any:
    inputs = {**sources([source]), "labels": torch.tensor([target])}
    (found,) = babn.attention_maps(model, inputs)
    return found


def test_attention_is_one_chain_of_one_step() -> None:
    for example in (None, batch(), batch(rows=[1]), {**batch(), "labels": padded(SOURCES, -100)}):
        found = babn.inspect(translator(), example)
        (chain,) = found.chains
        assert (chain.name, len(chain.calls)) == ("cross_attention", 1)
        assert chain.calls[0].crossed
        assert not found.skipped
    assert "cross_attention" in str(found)


def test_softmax_changes_nothing() -> None:
    model = translator()
    before = model(**batch())
    after = babn.convert(model, babn.SoftmaxConfig())(**batch())
    torch.testing.assert_close(after.logits, before.logits)
    torch.testing.assert_close(after.loss, before.loss)
    assert torch.equal(babn.revert(model)(**batch()).logits, before.logits)


@pytest.mark.parametrize(
    "method",
    [babn.BamConfig(), babn.BeliefConfig.pairs(max_length=16, sigma=0.0)],
    ids=["bam", "belief"],
)
def test_the_mean_is_softmax_without_scale_noise(method: Any) -> None:
    model = translator()
    before = model(**batch()).logits
    torch.testing.assert_close(babn.convert(model, method)(**batch()).logits, before)


def check_padding(model: Any, method: str) -> None:
    """Sentences alone and in padded batches have the same logits and the same KL."""
    singles = [model(**batch(rows=[i])).logits[0] for i in range(3)]
    kl = None if method == "softmax" else [kl_of(model, batch(rows=[i])) for i in range(3)]
    for together in (batch(), batch(extra=3), batch(extra=3, left=True)):
        logits = model(**together).logits
        for i, single in enumerate(singles):
            torch.testing.assert_close(logits[i, : len(TARGETS[i])], single)
        if kl is not None:
            torch.testing.assert_close(kl_of(model, together), torch.stack(kl).mean())


@pytest.mark.parametrize("method", METHODS)
def test_padding_changes_nothing(method: str) -> None:
    """Also not in the KL, of which a batch has the mean over its sentences."""
    check_padding(converted(method), method)


@pytest.mark.parametrize("method", METHODS)
def test_the_posterior_knows_only_what_has_been_generated(method: str) -> None:
    """The same at a target position whatever comes after it, and however much."""
    model = converted(method)
    before = weights(model, [5, 6, 7, 8, 3])
    for length in range(1, 5):
        words = [5, 6, 7, 8][: length - 1]
        for after in ([9], [10, 3], [4, 4, 4, 4, 3]):
            found = weights(model, words + after)
            for name in ("mean", "relative_std"):
                old, new = getattr(before, name), getattr(found, name)
                torch.testing.assert_close(new[:, :, :length], old[:, :, :length])
    other = weights(model, [9, 6, 7, 8, 3]).mean
    assert (other - before.mean)[:, :, 1:].abs().amax(-1).min() > 1e-4


@pytest.mark.parametrize("method", STOCHASTIC)
def test_samples_know_only_what_has_been_generated(method: str) -> None:
    model, inputs = converted(method), batch(rows=[1])
    changed = inputs | {"labels": inputs["labels"].clone()}
    changed["labels"][0, 3] = 10
    logits = []
    for each in (inputs, changed):
        with babn.sampling(model, seed=3):
            logits.append(model(**each).logits)
    torch.testing.assert_close(logits[0][:, :4], logits[1][:, :4])
    assert (logits[0][:, 4] - logits[1][:, 4]).abs().max() > 1e-4


@pytest.mark.parametrize("method", METHODS)
def test_masked_positions_get_no_weight(method: str) -> None:
    (found,) = babn.attention_maps(converted(method), batch(extra=2))
    rows = batch(extra=2)["labels"] != IGNORED
    keys = torch.arange(found.mean.shape[3]) < torch.tensor([len(s) for s in SOURCES])[:, None]
    seen = (rows[:, :, None] & keys[:, None])[:, None]
    assert (found.mean[~seen] == 0).all()
    torch.testing.assert_close(found.mean.sum(-1), rows[:, None].to(found.mean.dtype))


@pytest.mark.parametrize("method", METHODS)
def test_gradients_reach_every_parameter(method: str) -> None:
    torch.manual_seed(0)
    model = converted(method).train()
    model(**batch()).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("method", STOCHASTIC)
def test_the_kl_is_in_the_loss_of_training(method: str) -> None:
    model = converted(method)
    words = sum(map(len, TARGETS)) / len(TARGETS)  # the sum is of an example
    plain = words * model(**batch()).loss
    with babn.posterior_mean(model):
        model.train()
        output = model(**batch())
    assert isinstance(output, TranslationOutput)
    torch.testing.assert_close(output.loss, plain + babn.get_kl_weight(model) * output.belief_kl)
    assert output.belief_kl > 0


@pytest.mark.parametrize("method", STOCHASTIC)
def test_samples_differ_and_can_be_repeated(method: str) -> None:
    model = converted(method)
    inputs = {**sources(SOURCES), "decoder_input_ids": torch.tensor([[2, 5], [2, 6], [2, 7]])}
    first, again, other = (babn.predict(model, inputs, 4, seed=s) for s in (0, 0, 1))
    assert first.sample_probs.shape == (4, 3, 2, 11)
    assert torch.equal(first.sample_probs, again.sample_probs)
    assert not torch.equal(first.sample_probs, other.sample_probs)
    assert first.sample_probs.std(0).max() > 1e-3


@pytest.mark.parametrize("method", METHODS)
def test_saved_and_loaded(method: str, tmp_path: Path) -> None:
    model = converted(method).float()
    model.save_pretrained(tmp_path / "whole")
    loaded = babn.load(tmp_path / "whole").eval()
    assert type(loaded) is type(model)
    assert torch.equal(loaded(**batch()).logits, model(**batch()).logits)

    babn.save_adapter(model, tmp_path / "belief")
    filled = babn.load_adapter(translator().float(), tmp_path / "belief")
    assert torch.equal(filled(**batch()).logits, model(**batch()).logits)


def test_longer_sources_than_maps_are_refused() -> None:
    model = babn.convert(translator(), babn.BeliefConfig.pairs(max_length=9))
    with pytest.raises(babn.errors.KeyLengthError, match="max_length=10"):
        model(**sources([[5] * 10]), labels=torch.tensor([[6]]))
    targets = torch.tensor([[6] * 20])  # may be as long as they like
    assert model(**sources([[5] * 9]), labels=targets).loss.isfinite()


FEEDING = {"decoder": "input-feeding"}


def test_words_of_input_feeding_are_one_step_whatever_their_number() -> None:
    (chain,) = babn.inspect(translator(**FEEDING), batch()).chains
    assert (chain.name, len(chain.calls)) == ("cross_attention", 1)
    model = translator(**FEEDING)
    before = model(**batch())
    after = babn.convert(model, babn.SoftmaxConfig(), batch(rows=[2]))(**batch())
    torch.testing.assert_close(after.logits, before.logits)


@pytest.mark.parametrize("method", [*METHODS, "keys"])
def test_padding_changes_nothing_with_input_feeding(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, "keys", babn.BeliefConfig(kl_reduction="sum"))
    check_padding(converted(method, **FEEDING), method)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("method", STOCHASTIC)
def test_the_kl_of_input_feeding_is_that_of_all_words(method: str, reduction: str) -> None:
    config = replace(METHODS[method], kl_reduction=reduction)
    model = babn.convert(translator(**FEEDING), config)
    posteriors: list[Any] = []
    with overriding(model, record_kl=True, posteriors=posteriors):
        model(**batch(rows=[1]))
    assert len(posteriors) == len(TARGETS[1])
    each = torch.cat([posterior.kl() for _, posterior in posteriors], -2)
    expected = each.mean() if reduction == "mean" else each.sum()
    torch.testing.assert_close(babn.belief_kl(model), expected)


@pytest.mark.parametrize("method", METHODS)
def test_gradients_reach_every_parameter_with_input_feeding(method: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = converted(method, **FEEDING).float()
    model.save_pretrained(tmp_path)
    loaded = babn.load(tmp_path).eval()
    assert torch.equal(loaded(**batch()).logits, model(**batch()).logits)
    model.train()(**batch()).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, name
