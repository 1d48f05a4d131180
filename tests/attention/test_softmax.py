"""The deterministic method."""

import numpy as np
import torch
from attention_cases import array, causal, make_method, make_scores, posterior_of, readings, softmax

from babn import SoftmaxConfig


def test_weights_are_softmax_with_or_without_sampling():
    scores = make_scores()
    found = readings(posterior_of(make_method(SoftmaxConfig()), scores))
    np.testing.assert_allclose(array(found["mean"]), softmax(array(scores.phi)))
    assert torch.equal(found["mean"], found["sample"])


def test_there_is_no_spread_no_prior_and_no_parameter():
    method = make_method(SoftmaxConfig())
    posterior = posterior_of(method, make_scores(mask=causal(5)[:, :, 1:]))
    assert posterior.kl() is None
    assert not posterior.relative_std().any()
    assert not list(method.parameters())


def test_masked_weights_are_softmax_of_the_keys_seen():
    scores = make_scores(queries=5, mask=causal(5))
    weights = posterior_of(make_method(SoftmaxConfig()), scores).mean_weights()
    for q in range(5):
        expected = softmax(array(scores.phi)[:, :, q, : q + 1])
        np.testing.assert_allclose(array(weights)[:, :, q, : q + 1], expected)


def test_the_models_dropout_stays_on():
    assert SoftmaxConfig().attention_dropout
