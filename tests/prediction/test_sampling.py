"""Contexts that change what a forward pass draws and records."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_prediction import bert, converted, words
from torch import Tensor, nn

import babn
from babn.errors import NotConvertedError


@torch.no_grad()
def draw(model: nn.Module) -> Tensor:
    return model(**words()).logits


def differ(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).abs().max() > 1e-3)


def test_draws_differ_from_each_other_and_from_the_mean() -> None:
    model = converted()
    mean = draw(model)
    with babn.sampling(model):
        first, second = draw(model), draw(model)
    assert differ(first, second) and differ(first, mean) and differ(second, mean)


def test_a_seed_reproduces_the_series_and_leaves_the_global_state() -> None:
    model, state = converted(), torch.get_rng_state()
    with babn.sampling(model, seed=4):
        series = [draw(model), draw(model)]
    with babn.sampling(model, seed=4):
        again = [draw(model), draw(model)]
    assert differ(*series)
    assert all(map(torch.equal, series, again))
    assert torch.equal(torch.get_rng_state(), state)


def test_without_a_seed_the_global_state_is_used() -> None:
    model = converted()
    torch.manual_seed(3)
    with babn.sampling(model):
        first = draw(model)
    torch.manual_seed(3)
    with babn.sampling(model):
        assert torch.equal(draw(model), first)


def test_the_inner_of_two_seeds_counts_and_the_outer_goes_on() -> None:
    model = converted()
    with babn.sampling(model, seed=0):
        outer = [draw(model), draw(model)]
    with babn.sampling(model, seed=1):
        inner = draw(model)
    with babn.sampling(model, seed=0):
        assert torch.equal(draw(model), outer[0])
        with babn.sampling(model, seed=1):
            assert torch.equal(draw(model), inner)
        assert torch.equal(draw(model), outer[1])


def test_the_mean_inside_sampling() -> None:
    model = converted()
    mean = draw(model)
    with babn.sampling(model, seed=0), babn.posterior_mean(model):
        assert torch.equal(draw(model), mean)


@pytest.mark.parametrize("recording_first", [True, False])
def test_sampling_and_recording_go_together(recording_first: bool) -> None:
    model = converted()
    with babn.sampling(model, seed=0):
        sample = draw(model)
    contexts = [babn.sampling(model, seed=0), babn.recording_kl(model)]
    first, second = contexts[::-1] if recording_first else contexts
    with torch.no_grad(), first, second:
        output = model(**words())
    assert torch.equal(output.logits, sample)
    assert output.belief_kl > 0


def test_prediction_inside_sampling_keeps_its_own_seed() -> None:
    model = converted()
    expected = babn.predict(model, words(), samples=3).sample_logits
    with babn.sampling(model, seed=9):
        assert torch.equal(babn.predict(model, words(), samples=3).sample_logits, expected)


@pytest.mark.parametrize("context", [babn.sampling, babn.posterior_mean, babn.recording_kl])
def test_an_error_inside_leaves_the_model_as_before(context: Callable[..., Any]) -> None:
    model = converted()
    mean = draw(model)
    with pytest.raises(ZeroDivisionError), context(model):
        raise ZeroDivisionError
    assert torch.equal(draw(model), mean)
    assert model.babn.last_kl is None


def test_an_error_in_a_pass_leaves_the_model_as_before() -> None:
    model = converted()
    mean = draw(model)
    with babn.sampling(model, seed=0):
        expected = draw(model)
    with babn.sampling(model, seed=0):
        with pytest.raises(IndexError):
            model(input_ids=torch.full((1, 3), 10_000))
        assert torch.equal(draw(model), expected)
    assert torch.equal(draw(model), mean)


def test_posterior_mean_in_training() -> None:
    model = converted(hidden_dropout_prob=0.0)
    mean = draw(model)
    model.train()
    batch = {**words(), "labels": torch.tensor([0, 1, 2, 0])}
    with babn.posterior_mean(model):
        output = model(**batch)
    torch.testing.assert_close(output.logits, mean)
    likelihood = F.cross_entropy(output.logits, batch["labels"])
    torch.testing.assert_close(output.loss, likelihood + model.babn.kl_weight * output.belief_kl)
    assert differ(model(**batch).logits.detach(), mean)


def test_kl_is_recorded_on_request() -> None:
    model = converted()
    expected = model(**words()).belief_kl.detach()
    with torch.no_grad(), babn.recording_kl(model):
        output = model(**words())
    assert torch.equal(output.belief_kl, expected)
    assert list(babn.kl_per_layer(output)) == list(babn.kl_per_layer(model))
    assert not hasattr(draw(model), "belief_kl")


@pytest.mark.parametrize("context", [babn.sampling, babn.posterior_mean, babn.recording_kl])
def test_a_model_that_is_not_converted_is_refused(context: Callable[..., Any]) -> None:
    with pytest.raises(NotConvertedError, match="not converted"), context(bert()):
        pass


def test_two_models_do_not_share_a_context() -> None:
    one, other = converted(), converted()
    mean = draw(other)
    with babn.sampling(one, seed=0):
        assert differ(draw(one), mean)
        assert torch.equal(draw(other), mean)


def test_threads_do_not_disturb_each_other() -> None:
    model, found = converted(), {}
    mean = draw(model)
    start = threading.Barrier(3)

    def series(seed: int | None) -> list[Tensor]:
        start.wait(timeout=30)
        if seed is None:
            return [draw(model) for _ in range(8)]
        with babn.sampling(model, seed=seed):
            return [draw(model) for _ in range(8)]

    def work(seed: int | None) -> None:
        found[seed] = series(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (0, 1, None)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(x, mean) for x in found[None])
    for seed in (0, 1):
        with babn.sampling(model, seed=seed):
            assert all(torch.equal(draw(model), x) for x in found[seed])


def test_predictions_in_threads_are_those_of_one_thread() -> None:
    model, found = converted(), {}

    def work(seed: int) -> None:
        found[seed] = babn.predict(model, words(), samples=8, seed=seed, memory=0.0).probs

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, probs in found.items():
        expected = babn.predict(model, words(), samples=8, seed=seed, memory=0.0).probs
        assert torch.equal(probs, expected)
    assert len(found) == 3
