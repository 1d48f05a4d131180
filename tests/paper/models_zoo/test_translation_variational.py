"""Variational attention: its bound, its gradients and its predictions, by enumeration."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from pair_cases import enlarged
from torch import Tensor
from translation_cases import SOURCES, TARGETS, batch, gold, sources, translator

import babn
from babn_paper.models import variational
from babn_paper.models.variational import Aligned, kl_divergence, log_probabilities, relaxed

pytestmark = pytest.mark.thorough

SAMPLES = 6000


def sharp(**fields: Any) -> Any:
    """A model in training whose alignments matter."""
    return enlarged(translator(**{"attention": "va-enum"} | fields), 1.3).double().train()


def tables(model: Any, source: list[int], target: list[int]) -> tuple[Tensor, Tensor]:
    """Prior and words' probabilities of one sentence for all alignments, target by source."""
    memory = model.encode(torch.tensor([source]))
    labels = torch.tensor([target])
    states, _ = model.decoder(model.embedding(model.shifted(labels)), memory.start)
    query, own = model.state_projection(states).split([3, 6], -1)
    prior = torch.stack([(memory.key[0] @ q).softmax(0) for q in query[0]])
    words = torch.stack([model.words(own[0] + value) for value in memory.value[0]], 1)
    return prior, words.softmax(-1)[torch.arange(len(target)), :, labels[0]]


def brute_force(prior: Tensor, words: Tensor) -> Tensor:
    """Log-probability of a target: a sum over every alignment of all its words."""
    steps, places = prior.shape
    total = torch.zeros((), dtype=prior.dtype)
    for alignment in itertools.product(range(places), repeat=steps):
        at = torch.arange(steps), torch.tensor(alignment)
        total = total + (prior[at] * words[at]).prod()
    return total.log()


@contextmanager
def posterior(model: Any, log_q: Tensor) -> Iterator[None]:
    """Puts given alignments in the place of the inference network's."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(model.inference, "forward", lambda *_: log_q)
        yield


def gradients(model: Any, seed: int = 0) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    model.zero_grad()
    model(**batch()).loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("row", range(3))
def test_the_bound_is_below_the_log_probability(row: int) -> None:
    model = sharp()
    prior, words = tables(model, SOURCES[row], TARGETS[row])
    exact = brute_force(prior, words)
    output = model(**batch(rows=[row]))
    bound = (output.likelihood - output.kl) * len(TARGETS[row])

    torch.testing.assert_close(-output.loss * len(TARGETS[row]), bound)
    assert bound < exact - 1e-3


@pytest.mark.parametrize("row", range(3))
def test_the_bound_is_tight_at_the_true_posterior(row: int) -> None:
    model = sharp()
    prior, words = tables(model, SOURCES[row], TARGETS[row])
    exact = brute_force(prior, words)
    joint = prior * words
    with posterior(model, (joint / joint.sum(-1, keepdim=True)).log()[None]):
        output = model(**batch(rows=[row]))

    torch.testing.assert_close(-output.loss * len(TARGETS[row]), exact)


@pytest.mark.parametrize("row", range(3))
def test_both_terms_of_the_bound(row: int) -> None:
    model = sharp(kl_weight=0.25)
    prior, words = tables(model, SOURCES[row], TARGETS[row])
    q = torch.rand(prior.shape, generator=torch.Generator().manual_seed(row)).double().softmax(-1)
    with posterior(model, q.log()[None]):
        output = model(**batch(rows=[row]))
        model.config.kl_weight = 2.0
        heavier = model(**batch(rows=[row]))

    torch.testing.assert_close(output.likelihood, (q * words.log()).sum(-1).mean())
    torch.testing.assert_close(output.kl, (q * (q / prior).log()).sum(-1).mean())
    torch.testing.assert_close(output.loss, 0.25 * output.kl - output.likelihood)
    torch.testing.assert_close(heavier.loss, 2.0 * output.kl - output.likelihood)


def test_predictions_are_means_over_alignments() -> None:
    model = sharp().eval()
    output = model(**batch())
    found = gold(output.logits, batch()["labels"]).sum(-1)
    exact = [brute_force(*tables(model, s, t)) for s, t in zip(SOURCES, TARGETS, strict=True)]

    torch.testing.assert_close(found, torch.stack(exact))
    torch.testing.assert_close(output.loss, -sum(exact) / sum(map(len, TARGETS)))
    torch.testing.assert_close(
        output.logits.exp().sum(-1), torch.ones_like(output.logits[..., 0]), msg="not normalised"
    )


def test_samples_matter_in_training_alone() -> None:
    logits = [sharp(attention=name).eval()(**batch()).logits for name in ("va-enum", "va-sample")]
    assert torch.equal(*logits)


def test_soft_predictions_are_another_thing() -> None:
    means, soft = (sharp(prediction=name).eval()(**batch()).logits for name in ("enum", "soft"))
    assert (means.softmax(-1) - soft.softmax(-1)).abs().max() > 1e-2


def test_the_inference_network_sees_the_whole_target() -> None:
    model, seen = sharp(), []
    hook = model.inference.register_forward_hook(lambda *args: seen.append(args[-1].exp()))
    inputs = batch(rows=[1])
    model(**inputs)
    inputs["labels"][0, 3] = 10
    model(**inputs)
    hook.remove()

    assert (seen[0] - seen[1]).abs().amax(-1).min() > 1e-6
    torch.testing.assert_close(seen[0].sum(-1), torch.ones(1, 5).double())


@pytest.mark.parametrize(
    ("limit", "trained", "expected"),
    [
        pytest.param(110, 5 * 2 * 11, 3 * 5 * 11, id="two positions of one sentence"),
        pytest.param(600, 2 * 5 * 5 * 11, 3 * 5 * 3 * 11, id="two sentences"),
    ],
)
def test_enumeration_in_parts_changes_nothing(
    limit: int, trained: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = sharp()
    whole, predicted = gradients(model), model.eval()(**batch()).logits
    widths: list[int] = []
    model.words.output.register_forward_hook(lambda *args: widths.append(args[-1].numel()))
    monkeypatch.setattr(variational, "logits_at_once", lambda device: limit)
    parts = gradients(model.train())
    # Soft logits, batch by target by word, are made as well.
    assert max(width for width in widths if width != 3 * 5 * 11) == trained
    torch.testing.assert_close(parts, whole)

    widths.clear()
    torch.testing.assert_close(model.eval()(**batch()).logits, predicted)
    assert max(widths) == expected


def relative_gap(found: dict[str, Tensor], expected: dict[str, Tensor], part: str) -> float:
    names = [name for name in expected if name.startswith(part)]
    gap = sum((found[name] - expected[name]).square().sum() for name in names)
    return float((gap / sum(expected[name].square().sum() for name in names)).sqrt())


@pytest.mark.parametrize("baseline", [True, False])
def test_reinforce_has_the_gradient_of_enumeration(baseline: bool) -> None:
    expected = gradients(sharp())
    fields = {"attention": "va-sample", "baseline": baseline, "train_samples": SAMPLES}
    found = gradients(sharp(**fields))

    assert relative_gap(found, expected, "inference") < (0.05 if baseline else 0.1)
    assert relative_gap(found, expected, "") < 0.05
    of_words = gradients(sharp(kl_weight=0.0))
    of_kl = {name: expected[name] - of_words[name] for name in expected}
    assert relative_gap(of_kl, expected, "inference") > 0.3  # which the KL alone does not have


def test_the_value_of_samples_is_that_of_the_bound() -> None:
    torch.manual_seed(0)
    expected = sharp()(**batch())
    found = sharp(attention="va-sample", train_samples=SAMPLES)(**batch())

    torch.testing.assert_close(found.kl, expected.kl)
    assert found.likelihood.item() == pytest.approx(expected.likelihood.item(), abs=0.02)
    torch.testing.assert_close(found.loss, found.kl - found.likelihood)


def spread(make: Callable[[], Any], count: int = 20) -> float:
    model, name = make(), "inference.projection.weight"
    drawn = torch.stack([gradients(model, seed)[name] for seed in range(count)])
    return float(drawn.var(0).sum())


def test_the_baseline_takes_variance_away() -> None:
    with_it = spread(lambda: sharp(attention="va-sample"))
    without = spread(lambda: sharp(attention="va-sample", baseline=False))
    more = spread(lambda: sharp(attention="va-sample", train_samples=8))

    assert with_it < 0.7 * without
    assert more < 0.25 * with_it


def test_gumbel_samples_are_alignments() -> None:
    """The value is that of one source position for each word, chosen as often as it should be."""
    torch.manual_seed(0)
    model = sharp()
    prior, words = tables(model, SOURCES[0], TARGETS[0])
    memory = model.encode(**sources(SOURCES[:1]))
    labels = batch(rows=[0])["labels"]
    states, _ = model.decoder(model.embedding(model.shifted(labels)), memory.start)
    query, own = model._split(model.state_projection(states))
    log_p = log_probabilities(query @ memory.key.transpose(-1, -2), memory.text.seen)
    aligned = Aligned(model.words, own, memory, labels)
    drawn = torch.stack([relaxed(aligned, log_p, 0.5, 1)[0] for _ in range(400)])

    gaps = (drawn.unsqueeze(-1) - words.log()).abs()
    assert gaps.amin(-1).max() < 1e-9
    chosen = torch.nn.functional.one_hot(gaps.argmin(-1), 5).double().mean(0)
    assert (chosen - prior).abs().max() < 0.1
    torch.testing.assert_close(log_p.exp()[0], prior)


def test_kl_leaves_padding_out() -> None:
    seen = torch.tensor([[True, True, False]])
    log_q = torch.tensor([[[0.25, 0.75, 1.0]]]).log()
    log_p = torch.tensor([[[0.5, 0.5, 1.0]]]).log()
    expected = 0.25 * torch.tensor(0.5).log() + 0.75 * torch.tensor(1.5).log()
    torch.testing.assert_close(kl_divergence(log_q, log_p, seen), expected.view(1, 1))


def test_variational_attention_is_not_converted() -> None:
    with pytest.raises(babn.errors.NothingToConvertError):
        babn.convert(translator(attention="va-enum"))
