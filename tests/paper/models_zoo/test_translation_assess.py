"""How sure a model is of targets, against plain loops; samples that do not depend on batches."""

from typing import Any

import pytest
import torch
from test_translation_beam import STOCHASTIC, model_of
from torch import Tensor
from translation_cases import (
    IGNORED,
    SOURCES,
    VARIATIONAL,
    batch,
    gold,
    padded,
    sources,
    translator,
)

import babn
from babn.attention.noise_source import NoiseSource
from babn_paper.models import translate
from babn_paper.models.assess import assess
from babn_paper.models.translate import RowNoiseSource
from babn_paper.models.variational import drawn

SAMPLED = (*STOCHASTIC, "va-enum")


def entropy(probs: Tensor) -> Tensor:
    return -torch.xlogy(probs, probs).sum(-1)


@pytest.mark.parametrize("method", ["softmax", "belief", *VARIATIONAL])
def test_the_mean_is_that_of_teacher_forcing(method: str) -> None:
    model, inputs = model_of(method), batch()
    labels = inputs.pop("labels")
    logits = model(**inputs, labels=labels).logits.detach()
    found = assess(model, inputs, labels)
    torch.testing.assert_close(found.log_probs[found.counted], gold(logits, labels)[found.counted])
    expected = entropy(logits.softmax(-1))
    torch.testing.assert_close(found.entropy[found.counted], expected[found.counted])
    assert found.mutual_information.abs().max() < 1e-12
    assert (found.spread == 0).all()


@pytest.mark.parametrize("method", STOCHASTIC)
def test_samples_are_those_of_attention(method: str) -> None:
    """Against probabilities of single passes with the same noise."""
    model, inputs = model_of(method), batch()
    labels = inputs.pop("labels")
    found = assess(model, inputs, labels, samples=5, seed=1)
    from babn.attention.noise_source import fold_in
    from babn.conversion.override import overriding

    noise = RowNoiseSource([fold_in(1, i) for i in range(3)])
    with overriding(model, mode="sample", noise_source=noise), torch.no_grad():
        probs = torch.stack([model(**inputs, labels=labels).logits.softmax(-1) for _ in range(5)])
    mean, counted = probs.mean(0), found.counted
    torch.testing.assert_close(found.entropy[counted], entropy(mean)[counted])
    shared = (entropy(mean) - entropy(probs).mean(0))[counted]
    torch.testing.assert_close(found.mutual_information[counted], shared)
    right = mean.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1).log()
    torch.testing.assert_close(found.log_probs[counted], right[counted])
    logs = torch.stack([gold(each.log(), labels) for each in probs]).sum(-1) / counted.sum(-1)
    torch.testing.assert_close(found.spread, logs.std(0))


@pytest.mark.thorough
@pytest.mark.parametrize("method", SAMPLED)
def test_a_sentence_has_its_noise_in_every_batch(method: str) -> None:
    model = model_of(method)
    fields: dict[str, Any] = {"max_length": 6, "samples": 3, "seed": 4}
    together = translate(model, sources(SOURCES, extra=2), 3, **fields)
    labels = padded([[5, 6, 3], [7, 3], [3]], IGNORED)
    judged = assess(model, sources(SOURCES, extra=2), labels, 3, 4)
    for i, source in enumerate(SOURCES):
        alone = translate(model, sources([source]), 3, numbers=[i], **fields)
        width = alone.words.shape[-1]
        assert torch.equal(together.words[i, :, :width], alone.words[0])
        torch.testing.assert_close(together.scores[i], alone.scores[0])
        single = assess(model, sources([source]), labels[i : i + 1], 3, 4, [i])
        counted = judged.counted[i]
        torch.testing.assert_close(judged.entropy[i, counted], single.entropy[0, counted])
    other = translate(model, sources(SOURCES), 3, numbers=[5, 6, 7], **fields)
    assert not torch.equal(other.scores, together.scores)
    with pytest.raises(babn.errors.ConfigError, match="numbers has 2 entries for 3 sentences"):
        translate(model, sources(SOURCES), 3, numbers=[1, 2], **fields)


def test_drawn_alignments_follow_their_prior() -> None:
    """Frequencies of 4000 draws within 5 standard errors; padding is never drawn."""
    memory = translator().encode(**sources([[4, 5, 6, 3], [8, 3]]))
    log_p = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.7, 0.3, 0.0, 0.0]]).double().log()
    log_p = log_p.clamp(min=-50).unsqueeze(1).expand(-1, 4000, -1)
    found = drawn(memory, log_p, NoiseSource([0]))
    assert (found.sum(-1) == 1).all()
    assert not found[1, :, 2:].any()
    torch.testing.assert_close(found.mean(1), log_p[:, 0].exp(), atol=5 * 0.5 / 4000**0.5, rtol=0)


@pytest.mark.thorough
def test_variational_samples_are_near_their_marginal() -> None:
    model, inputs = model_of("va-enum"), batch()
    labels = inputs.pop("labels")
    exact = assess(model, inputs, labels)
    found = assess(model, inputs, labels, samples=400)
    gap = (found.log_probs.exp() - exact.log_probs.exp())[found.counted].abs().max()
    assert gap < 5 * 0.5 / 400**0.5
    assert found.mutual_information[found.counted].max() > 1e-3


def test_dropout_mode_is_restored_after_prediction() -> None:
    model = translator(dropout=0.5)
    state = torch.get_rng_state()
    inputs = batch()
    labels = inputs.pop("labels")
    one, two = (assess(model, inputs, labels, 4, seed, dropout=True) for seed in (0, 0))
    assert torch.equal(one.log_probs, two.log_probs)
    assert one.mutual_information.max() > 0
    assert torch.equal(state, torch.get_rng_state())
    assert not model.training
