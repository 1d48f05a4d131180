"""The contextual prior against the same network written in numpy."""

import numpy as np
import pytest
import torch
from attention_cases import DIM, array, causal, make_scores, padding, softmax

from babn.attention.inputs import Scores
from babn.attention.prior import KeyNetwork


@pytest.fixture
def network():
    torch.manual_seed(0)
    return KeyNetwork(DIM, hidden=4).double()


def numbers(network, key):
    inner, outer = network.inner, network.outer
    hidden = np.maximum(array(key) @ array(inner.weight).T + array(inner.bias), 0)
    return (hidden @ array(outer.weight).T + array(outer.bias))[..., 0]


def test_alpha_is_a_softmax_over_keys(network):
    scores = make_scores()
    expected = softmax(numbers(network, scores.key))[:, :, None]
    alpha = array(network.log_alpha(scores).exp())
    np.testing.assert_allclose(alpha, np.broadcast_to(expected, alpha.shape))


def test_queries_that_see_the_same_keys_share_a_row(network):
    assert network.log_alpha(make_scores()).shape[2] == 1
    assert network.log_alpha(make_scores(mask=padding(4, 2, keys=5))).shape[2] == 1


def test_queries_that_see_different_keys_do_not(network):
    scores = make_scores(keys=4, mask=causal(4))
    log_alpha = network.log_alpha(scores)
    assert log_alpha.shape == scores.phi.shape
    torch.testing.assert_close(log_alpha[0, 0, 0, 0].item(), 0.0)


def test_alpha_is_a_softmax_over_the_keys_seen(network):
    mask = padding(4, 2, keys=5)
    scores = make_scores(mask=mask)
    log_alpha = network.log_alpha(scores)
    for example, length in enumerate((4, 2)):
        expected = softmax(numbers(network, scores.key)[example, :, None, :length])
        alpha = array(log_alpha[example, ..., :length].exp())
        np.testing.assert_allclose(alpha, np.broadcast_to(expected, alpha.shape))
        assert not log_alpha[example, ..., length:].any()


def test_grouped_heads_share_their_keys_prior(network):
    scores = make_scores()
    grouped = Scores(scores.phi.repeat_interleave(3, dim=1), None, scores.key)
    expected = network.log_alpha(scores).repeat_interleave(3, dim=1)
    torch.testing.assert_close(network.log_alpha(grouped), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_half_precision_keys_and_weights_give_float32(network, dtype):
    scores = make_scores(dtype=torch.float32)
    half = Scores(scores.phi, None, scores.key.to(dtype))
    log_alpha = network.to(dtype).log_alpha(half)
    assert log_alpha.dtype == torch.float32
    torch.testing.assert_close(log_alpha.exp().sum(-1), torch.ones(2, 2, 1))


def test_large_keys_stay_finite(network):
    scores = make_scores()
    log_alpha = network.log_alpha(Scores(scores.phi, None, 1e6 * scores.key))
    gradients = torch.autograd.grad(log_alpha.sum(), [scores.key, *network.parameters()])
    assert all(torch.isfinite(x).all() for x in (log_alpha, *gradients))
