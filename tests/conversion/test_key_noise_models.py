"""Noise per key, the default, in every kind of model."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import babn
from babn.attention.keys import KeyPosterior
from babn.attention.noise_source import NoiseSource
from babn.attention.posterior import Posterior
from babn.conversion.override import overriding
from conversion.test_causality import CAUSAL, CUT, with_another_end
from conversion.test_generation import GENERATORS, TOKENS, generate
from conversion.test_padding import PADDED, assert_equal, longer
from models import (
    CASES,
    Batch,
    Case,
    cases,
    checkpoint_activations,
    floats,
    gap,
    outputs,
    without_dropout,
)

# Their own attention is not torch's: products in another order, or a fast path of encoders.
OTHERWISE = {"deberta", "mpnet", "t5", "gemma2", "multihead", "torch-encoder", "torch-transformer",
             "handmade"}  # fmt: skip


@pytest.mark.parametrize("grad", [False, True], ids=["no-grad", "grad"])
@pytest.mark.parametrize("case", cases())
def test_the_posterior_mean_is_the_unconverted_model(case: Case, grad: bool) -> None:
    """Bit for bit where both call torch's attention, with and without gradients."""
    batch, original = case.batch(), case.model()
    converted = babn.convert(case.model(), example_inputs=case.example)
    assert converted.babn.config == babn.BeliefConfig()

    with torch.set_grad_enabled(grad):
        expected, found = floats(original(**batch)), floats(converted(**batch))

    if case.name in OTHERWISE:
        assert gap(expected, found) < 1e-5
    else:
        assert all(map(torch.equal, expected, found))


@pytest.mark.parametrize("case", cases())
def test_samples_differ_from_the_mean_and_can_be_repeated(case: Case) -> None:
    model, batch = case.with_key_noise(), case.batch()
    with torch.no_grad():
        mean = outputs(model, batch)
        drawn = []
        for seed in (0, 0, 1):
            with babn.sampling(model, seed=seed):
                drawn.append(outputs(model, batch))

    first, again, other = drawn
    assert all(x.isfinite().all() for x in first)
    assert all(map(torch.equal, first, again))
    assert gap(mean, first) > 1e-3 and gap(first, other) > 1e-3


@pytest.mark.thorough
@pytest.mark.parametrize("case", cases("bert", "vit", "llama", "bart", "multihead", "sdpa"))
def test_samples_by_a_bias_on_keys_are_those_of_the_weights(case: Case) -> None:
    """Torch's attention with a bias, beside the reference that makes the weights."""
    found = []
    for kernel in ("auto", "reference"):
        model = case.with_key_noise(kernel=kernel)
        with torch.no_grad(), babn.sampling(model, seed=0):
            found.append(outputs(model, case.batch()))

    assert gap(*found) < 1e-4


@pytest.mark.parametrize("case", cases())
def test_every_belief_parameter_gets_a_finite_gradient(case: Case) -> None:
    model = case.with_key_noise(kl_weight=1.0).train()

    case.loss(model).backward()

    gradients = {name: p.grad for name, p in model.babn.named_parameters()}
    assert [name for name, grad in gradients.items() if grad is None] == []
    assert [name for name, grad in gradients.items() if not grad.isfinite().all()] == []
    # The prior is normalised over keys, so that its last bias cancels.
    dead = [name for name, grad in gradients.items() if not grad.any()]
    assert [name for name in dead if not name.endswith("outer.bias")] == []
    assert any("log_shape" in name for name in gradients)


@pytest.mark.thorough
@pytest.mark.parametrize("case", cases())
def test_training_without_noise_or_dropout_equals_evaluation(case: Case) -> None:
    batch = case.batch()
    converted = without_dropout(case.with_key_noise(rho=1e9)).train()

    # Shapes end at 10,000, where a variable still moves by a ten-thousandth.
    assert gap(outputs(case.model(), batch), outputs(converted, batch)) < 1e-2


@pytest.mark.parametrize("case", PADDED)
def test_more_padding_changes_nothing(case: Case) -> None:
    model, batch = case.with_key_noise(kl_reduction="sum"), case.batch()

    assert_equal(model, batch, longer(batch, "x" if "x" in batch else "input_ids"))


def posteriors_of(model: nn.Module, batch: Batch) -> tuple[Any, dict[str, KeyPosterior]]:
    """A sampled pass with the seed 0: its output and the posterior of each call."""
    found: list[tuple[str, Posterior]] = []
    changes = {"mode": "sample", "noise_source": NoiseSource([0]), "posteriors": found}
    with torch.no_grad(), overriding(model, **changes):
        output = model(**batch)
    return output, dict(found)


@pytest.mark.thorough
@pytest.mark.parametrize("case", cases("bert", "modernbert", "sdpa", "handmade"))
def test_padding_changes_no_shape(case: Case) -> None:
    model, batch = case.with_key_noise(), case.batch()
    with overriding(model, mode="mean"):
        short = posteriors_at_the_mean(model, batch)
        long = posteriors_at_the_mean(model, longer(batch, "x" if "x" in batch else "input_ids"))

    for name, posterior in short.items():
        seen = posterior.relative_std() > 0
        keys = seen.shape[-1]
        expected, found = posterior.relative_std(), long[name].relative_std()
        found = found[..., : seen.shape[-2], :keys]
        torch.testing.assert_close(found[seen], expected[seen], rtol=1e-4, atol=1e-5)


def posteriors_at_the_mean(model: nn.Module, batch: Batch) -> dict[str, Posterior]:
    found: list[tuple[str, Posterior]] = []
    with torch.no_grad(), overriding(model, mode="mean", posteriors=found):
        model(**batch)
    return dict(found)


@pytest.mark.parametrize("case", CAUSAL)
def test_later_tokens_change_nothing_before_them(case: Case) -> None:
    model, batch = case.with_key_noise(), case.batch()

    output, posteriors = posteriors_of(model, batch)
    other, changed = posteriors_of(model, with_another_end(batch))

    first, second = (x if isinstance(x, Tensor) else x.logits for x in (output, other))
    torch.testing.assert_close(second[:, :CUT], first[:, :CUT], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(second[:, CUT:], first[:, CUT:], atol=1e-3)
    rowwise = {
        f"{chain.name}/{step}": call.rowwise
        for chain in model.babn.chains
        for step, call in enumerate(chain.calls)
    }
    causal = [name for name in posteriors if rowwise[name]]
    assert causal
    for name in causal:
        pair = (each[name].variables.k[..., :CUT] for each in (changed, posteriors))
        torch.testing.assert_close(*pair, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.thorough
@pytest.mark.parametrize("case", GENERATORS)
def test_cached_equals_uncached_under_one_sample(case: Case) -> None:
    """Two rows, the first padded on the left, past the windows of Mistral and Gemma 2."""
    model = case.with_key_noise(rho=0.5)
    with babn.sampling(model, seed=0, fixed=True):
        cached, uncached = generate(model, use_cache=True), generate(model, use_cache=False)

    assert len(cached.logits) == TOKENS
    torch.testing.assert_close(
        torch.stack(cached.logits), torch.stack(uncached.logits), rtol=1e-3, atol=1e-4
    )
    assert not torch.allclose(cached.logits[0], generate(model).logits[0], rtol=1e-3)


@pytest.mark.thorough
@pytest.mark.parametrize("case", cases("gpt2", "bart", "t5"))
def test_the_mean_generates_as_the_original(case: Case) -> None:
    converted, original = generate(case.with_key_noise()), generate(case.model())

    assert torch.equal(converted.sequences, original.sequences)


@pytest.mark.thorough
@pytest.mark.parametrize("case", cases("bert", "gpt2", "bart", "deberta"))
def test_checkpointing_has_the_gradients_of_training_without_it(case: Case) -> None:
    model, found = case.with_key_noise(kl_weight=1.0).train(), []
    for checkpointed in (False, True):
        if checkpointed:
            checkpoint_activations(model)
        model.zero_grad()
        torch.manual_seed(0)
        case.loss(model).backward()
        grads = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        found.append(torch.cat(grads))

    assert gap(found[:1], found[1:]) < 1e-5


def test_a_reverted_model_is_the_original() -> None:
    case = CASES["bert"]
    model = babn.revert(case.with_key_noise())

    assert all(map(torch.equal, outputs(case.model(), case.batch()), outputs(model, case.batch())))
