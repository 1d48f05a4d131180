"""One variable for each key: the paper's distributions shared by all queries."""

import numpy as np
import pytest
import torch
from attention_cases import (
    DIM,
    HEADS,
    array,
    causal,
    make_method,
    make_scores,
    padding,
    posterior_of,
    repeated,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from torch import Tensor

from babn import BeliefConfig
from babn.attention.inputs import Inputs, Scores
from babn.attention.keys import LARGEST_K, SMALLEST_K, KeyBeliefMethod
from babn.attention.method import ChainShape
from babn.attention.noise_source import NoiseSource
from babn.errors import ConfigError, UnsupportedAttentionError
from babn.kernels.sdpa import softmax_attention
from models import CASES, without_dropout

CONFIG = BeliefConfig(rho=1.3)
PAIRS_ONLY = {
    "sigma": 1e-6,
    "scores": "raw",
    "upward": "heads",
    "max_length": 64,
}
modest = settings(max_examples=40, deadline=None, derandomize=True, database=None)


def chain_method(rowwise: bool | None, heads: int = HEADS) -> KeyBeliefMethod:
    """A method of a chain whose calls are known to be row by row, or not."""
    method = CONFIG.build(ChainShape(heads, DIM, (0,), rowwise)).double()
    assert isinstance(method, KeyBeliefMethod)
    return method


def shapes(method: KeyBeliefMethod, scores: Scores, step: int = 0) -> Tensor:
    return posterior_of(method, scores, step).variables.k


def relative_shapes(factor: float, key: np.ndarray) -> np.ndarray:
    """rho exp(a) |K_j - mean K|^2 / mean, of one head's keys."""
    energy = ((key - key.mean(0)) ** 2).sum(-1)
    return np.clip(factor * energy / energy.mean(), SMALLEST_K, LARGEST_K)


def test_the_mean_is_softmax_bit_for_bit() -> None:
    scores = make_scores()
    posterior = posterior_of(make_method(CONFIG), scores)
    assert torch.equal(posterior.mean_weights(), scores.phi.softmax(-1))


@pytest.mark.parametrize("lengths", [(5, 5), (3, 4)], ids=["whole", "padded"])
def test_shapes_are_relative_to_the_keys_that_are_seen(lengths: tuple[int, int]) -> None:
    mask = None if lengths == (5, 5) else padding(*lengths, keys=5)
    scores, method = make_scores(mask=mask), make_method(CONFIG)
    method.energies.fill_(77.0)  # of causal chains
    found = array(shapes(method, scores, step=1))
    factor = 1.3 * np.exp(method.log_shape[1].item())
    for row, head in np.ndindex(2, HEADS):
        key = array(scores.key)[row, head, : lengths[row]]
        expected = relative_shapes(factor, key)
        np.testing.assert_allclose(found[row, head, 0, : lengths[row]], expected, rtol=1e-12)


@pytest.mark.parametrize("rowwise", [None, True])
def test_shapes_of_causal_chains_are_relative_to_the_dry_run(rowwise: bool | None) -> None:
    method, scores = chain_method(rowwise), make_scores(queries=5, mask=causal(5))
    method.energies.copy_(torch.tensor([[2.0, 5.0]]))
    found = array(shapes(method, scores))
    energy = (array(scores.key) ** 2).sum(-1)
    expected = np.clip(1.3 * energy / np.array([[2.0], [5.0]]), SMALLEST_K, LARGEST_K)
    np.testing.assert_allclose(found[:, :, 0], expected, rtol=1e-12)


def test_the_dry_run_decides_what_shapes_are_relative_to_and_the_mask_elsewhere() -> None:
    scores = make_scores(queries=5)
    masks = {"none": None, "padding": padding(5, 3, keys=5), "causal": causal(5)}
    calls = {name: Scores(scores.phi, mask, scores.key) for name, mask in masks.items()}
    static = shapes(chain_method(True), calls["none"])
    for call in calls.values():
        assert torch.equal(shapes(chain_method(True), call), static)
    relative = shapes(chain_method(False), calls["none"])
    assert not torch.allclose(relative, static)
    torch.testing.assert_close(shapes(chain_method(False), calls["causal"]), relative)
    for name, rowwise in {"none": False, "padding": False, "causal": True}.items():
        expected = shapes(chain_method(rowwise), calls[name])
        assert torch.equal(shapes(chain_method(None), calls[name]), expected), name


@modest
@given(st.integers(0, 1000), st.integers(2, 5), st.floats(-30, 30))
def test_what_all_keys_have_in_common_changes_nothing(seed: int, length: int, size: float) -> None:
    scores = make_scores(seed=seed, mask=padding(5, length, keys=5))
    query = torch.randn(2, HEADS, 4, DIM, dtype=torch.float64)
    shift = size * torch.randn(2, HEADS, 1, DIM, dtype=torch.float64)
    method = chain_method(False)
    one, moved = (
        posterior_of(method, Inputs(query, key, key, 0.6, scores.mask).scores())
        for key in (scores.key, scores.key + shift)
    )
    torch.testing.assert_close(moved.variables.k, one.variables.k, rtol=1e-8, atol=1e-8)
    sampled = (each.sample_weights(NoiseSource([0])) for each in (moved, one))
    torch.testing.assert_close(*sampled, rtol=1e-6, atol=1e-8)


@modest
@given(st.integers(0, 1000), st.floats(0.01, 100))
def test_the_size_of_all_keys_does_not_count(seed: int, size: float) -> None:
    scores, method = make_scores(seed=seed), chain_method(False)
    larger = Scores(scores.phi, None, size * scores.key)
    torch.testing.assert_close(shapes(method, larger), shapes(method, scores), rtol=1e-8, atol=1e-8)


@modest
@given(st.integers(0, 1000), st.integers(1, 6), st.booleans())
def test_padding_changes_no_key(seed: int, more: int, left: bool) -> None:
    scores, method = make_scores(seed=seed), chain_method(False)
    other = make_scores(keys=more, seed=seed + 1)
    order = (other, scores) if left else (scores, other)
    whole = Scores(
        torch.cat([each.phi for each in order], -1),
        padding(5, 5, keys=5 + more, left=left),
        torch.cat([each.key for each in order], -2),
    )
    own = slice(more, None) if left else slice(5)
    one, padded = posterior_of(method, scores), posterior_of(method, whole)
    torch.testing.assert_close(padded.variables.k[..., own], one.variables.k)
    torch.testing.assert_close(padded.kl()[..., own], one.kl())
    torch.testing.assert_close(padded.relative_std()[..., own], one.relative_std())
    torch.testing.assert_close(padded.mean_weights()[..., own], one.mean_weights())


@pytest.mark.parametrize("count", [1, 5])
def test_keys_that_are_alike_have_shape_rho_and_finite_gradients(count: int) -> None:
    scores = make_scores(keys=count)
    key = torch.ones_like(scores.key).requires_grad_()
    posterior = posterior_of(chain_method(False), Scores(scores.phi, None, key))
    assert torch.equal(posterior.variables.k, torch.full_like(posterior.variables.k, 1.3))
    (gradient,) = torch.autograd.grad(posterior.kl().sum(), key)
    assert gradient.isfinite().all()


def test_shapes_stay_between_floor_and_ceiling() -> None:
    scores = make_scores(keys=20)
    key = scores.key.detach().clone()
    key[:, :, 0], key[:, :, 1] = key.mean(2), 1e6
    method = chain_method(True)
    found = shapes(method, Scores(scores.phi, None, key))
    assert found.max() == LARGEST_K
    method = KeyBeliefMethod(BeliefConfig(rho=0.2), ChainShape(HEADS, DIM, (0,), False)).double()
    assert shapes(method, Scores(scores.phi, None, key)).min() == SMALLEST_K


def test_variables_have_mean_one() -> None:
    posterior = posterior_of(make_method(CONFIG), repeated(make_scores(batch=1), 200_000))
    mean = posterior.log_sample(NoiseSource([0])).exp().mean(0)
    spread = posterior.variables.relative_std[0]
    assert ((mean - 1).abs() < 4 * spread / 200_000**0.5 + 1e-3).all()


def test_all_queries_share_the_noise() -> None:
    scores = make_scores()
    weights = posterior_of(make_method(CONFIG), scores).sample_weights(NoiseSource([0]))
    noise = weights.log() - scores.phi
    noise = noise - noise[..., :1]
    torch.testing.assert_close(noise, noise[:, :, :1].expand_as(noise))
    assert noise.std() > 0.1


def test_the_kl_is_that_of_the_densities() -> None:
    method, scores = make_method(CONFIG), make_scores(batch=1)
    posterior = posterior_of(method, scores)
    alpha = (method.prior_nets[0](scores.key)[0, 0].softmax(-1) * 5).tolist()
    kl = posterior.kl()[0, 0, 0].tolist()
    shapes = posterior.variables.k[0, 0, 0].tolist()
    for key in range(5):
        k = shapes[key]
        q = stats.weibull_min(k, scale=1 / stats.weibull_min(k).mean())
        p = stats.gamma(alpha[key])

        def density(t: float, q=q, p=p) -> float:
            s = np.exp(t)
            return float(q.pdf(s) * s * (q.logpdf(s) - p.logpdf(s)))

        expected, _ = integrate.quad(density, -60 / k, 6, limit=400)
        assert kl[key] == pytest.approx(expected, rel=1e-5)


def test_the_kl_is_zero_where_posterior_and_prior_are_exponential() -> None:
    method = KeyBeliefMethod(BeliefConfig(rho=1.0), ChainShape(1, 4, (0,))).double()
    with torch.no_grad():
        for parameter in method.prior_nets.parameters():
            parameter.zero_()
    key = torch.ones(1, 1, 6, 4, dtype=torch.float64)  # all alike, so that each has shape rho
    scores = Scores(torch.randn(1, 1, 6, 6, dtype=torch.float64), None, key)
    torch.testing.assert_close(
        method(0, scores, None).kl(), torch.zeros(1, 1, 1, 6, dtype=torch.float64)
    )


@pytest.mark.parametrize("rowwise", [None, True])
def test_later_keys_do_not_change_a_key(rowwise: bool | None) -> None:
    method, scores = chain_method(rowwise), make_scores(queries=5)
    short = Scores(scores.phi[..., :3, :3], causal(3), scores.key[:, :, :3])
    whole = Scores(scores.phi, causal(5), scores.key)
    assert torch.equal(shapes(method, short), shapes(method, whole)[..., :3])


def test_a_lone_query_of_a_causal_chain_sees_the_shapes_of_the_whole() -> None:
    method, scores = chain_method(True), make_scores(queries=5)
    last = Scores(scores.phi[..., -1:, :], None, scores.key)
    whole = Scores(scores.phi, causal(5), scores.key)
    assert torch.equal(shapes(method, last), shapes(method, whole))


@pytest.mark.parametrize("rowwise", [True, False])
def test_random_initialisation_does_not_touch_the_shapes(rowwise: bool) -> None:
    scores, found = make_scores(), []
    for seed in (0, 1):
        torch.manual_seed(seed)
        method = chain_method(rowwise)
        method.observe([scores.key])
        found.append(shapes(method, scores))
    assert torch.equal(*found)


def test_typical_keys_have_shape_rho() -> None:
    method = make_method(CONFIG)
    found, factor = shapes(method, make_scores(), step=1), method.log_shape[1].exp().item()
    assert (found > SMALLEST_K).all()
    torch.testing.assert_close(found.mean(-1), torch.full_like(found[..., 0], 1.3 * factor))


def test_typical_keys_of_causal_chains_have_shape_rho() -> None:
    method = CONFIG.build(ChainShape(HEADS, DIM, (0, 0), True)).double()
    scores = make_scores()
    scores = Scores(scores.phi, None, 1 + scores.key.square())  # no shape below the floor
    method.observe([scores.key, 2 * scores.key])  # two calls of one shared module
    k = method(0, scores, None).variables.k
    torch.testing.assert_close(
        k.mean(dim=(0, 2, 3)) * 2.5, torch.full((2,), 1.3, dtype=torch.float64)
    )


@pytest.mark.parametrize("rowwise", [True, False])
def test_grouped_queries_read_the_keys_of_their_group(rowwise: bool) -> None:
    method, scores = chain_method(rowwise, heads=4), make_scores()
    grouped = Scores(scores.phi.repeat_interleave(2, 1), None, scores.key)
    method.observe([scores.key])
    k = method(0, grouped, None).variables.k
    assert torch.equal(k[:, 0], k[:, 1]) and torch.equal(k[:, 2], k[:, 3])
    assert not torch.allclose(k[:, 0], k[:, 2])
    assert method(0, grouped, None).kl().shape == (2, 4, 1, 5)


@pytest.mark.parametrize(
    ("mask", "rowwise"),
    [
        pytest.param(None, True, id="whole-True"),
        pytest.param(padding(3, keys=5), False, id="padded-False"),
        pytest.param(None, False, id="whole-False", marks=pytest.mark.thorough),
        pytest.param(padding(3, keys=5), True, id="padded-True", marks=pytest.mark.thorough),
    ],
)
def test_gradients(rowwise: bool, mask: Tensor | None) -> None:
    method, scores = chain_method(rowwise), make_scores(batch=1, mask=mask)

    def outputs(phi: Tensor, key: Tensor, log_shape: Tensor) -> tuple[Tensor, ...]:
        call = 0, Scores(phi, mask, key), None
        posterior = torch.func.functional_call(method, {"log_shape": log_shape}, call)
        return posterior.sample_weights(NoiseSource([3])), posterior.kl()

    log_shape = torch.tensor([0.4], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(outputs, (scores.phi, scores.key, log_shape))


@pytest.mark.parametrize("bias", [None, torch.randn(1, 1, 4, 5)], ids=["plain", "bias"])
@pytest.mark.parametrize("mask", [None, torch.tensor([True, True, True, False, True])])
def test_a_bias_on_keys_is_the_same_attention(bias, mask) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(2, HEADS, 4, 3), torch.randn(2, HEADS, 5, 3), torch.randn(2, HEADS, 5, 3)
    mask = None if mask is None else mask.expand(2, 1, 4, 5)
    inputs = Inputs(q, k, v, scale=0.7, mask=mask, bias=bias)
    method = make_method(CONFIG, dtype=torch.float32)
    by_scores = method(0, inputs.scores(), None)
    without = method(0, inputs.without_scores(), None)
    log_e = without.log_sample(NoiseSource([1]))
    biased = inputs.with_bias(log_e)
    expected = by_scores.sample_weights(NoiseSource([1])) @ v
    torch.testing.assert_close(softmax_attention(biased), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "value"), PAIRS_ONLY.items(), ids=PAIRS_ONLY)
def test_settings_of_pairs_are_refused_with_a_remedy(name: str, value: object) -> None:
    setting = rf"{name}={value!r}"
    remedy = rf"^{setting} is a setting of noise over pairs.*pairs\({setting}\).*noise_over=pairs"
    with pytest.raises(ConfigError, match=remedy):
        BeliefConfig(**{name: value})
    assert getattr(BeliefConfig.pairs(**{name: value}), name) == value


def test_noise_without_end_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"rho=0\.0.*greater than 0"):
        BeliefConfig(rho=0.0)


def test_required_kernels_that_cannot_run_are_an_error() -> None:
    model = CASES["bert"].with_key_noise(kernel="triton").train()
    without_dropout(model)
    with pytest.raises(UnsupportedAttentionError, match=r'kernel="triton".*on cpu.*kernel="auto"'):
        model(**CASES["bert"].batch())
