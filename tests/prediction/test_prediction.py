"""Statistics of samples, against numpy and scipy."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from babn import Prediction
from babn.errors import ConfigError, SamplesError


def logits_of(probs: list[list[float]]) -> Tensor:
    """Samples of one example's logits, from probabilities."""
    return torch.tensor(probs, dtype=torch.float64).log().unsqueeze(1)


def entropy(p: np.ndarray) -> np.ndarray:
    return -(p * np.log(p)).sum(-1)


shapes = st.tuples(st.integers(1, 6), st.integers(1, 3), st.integers(2, 5))


@given(shapes, st.integers(0, 1000), st.floats(0.1, 10))
def test_statistics_are_those_of_numpy(shape: tuple[int, ...], seed: int, scale: float) -> None:
    logits = scale * np.random.default_rng(seed).normal(size=shape)
    found = Prediction(torch.from_numpy(logits))
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    spread = p.std(0, ddof=1) if len(p) > 1 else np.zeros(p.shape[1:])
    for name, expected in {
        "sample_probs": p,
        "probs": p.mean(0),
        "std": spread,
        "entropy": entropy(p.mean(0)),
        "expected_entropy": entropy(p).mean(0),
        "mutual_information": entropy(p.mean(0)) - entropy(p).mean(0),
    }.items():
        np.testing.assert_allclose(getattr(found, name), expected, atol=1e-12, err_msg=name)
    assert (found.mutual_information >= 0).all()


def test_a_residual_widens_the_values_of_a_regression() -> None:
    samples = torch.tensor([-1.0, 1.0]).expand(3, 2).T[..., None]
    found = Prediction(samples, "identity", 2.0)
    torch.testing.assert_close(found.std, torch.full((3, 1), 6.0).sqrt())
    low, high = found.interval(0.9).unbind(-1)
    for end, share in ((low, 0.05), (high, 0.95)):
        below = (stats.norm(-1, 2).cdf(end) + stats.norm(1, 2).cdf(end)) / 2
        np.testing.assert_allclose(below, share, atol=1e-6)
    alone = replace(found, residual=0.0)
    torch.testing.assert_close(alone.interval(0.5), torch.tensor([[-0.5, 0.5]]).expand(3, 2))
    assert found[:2].residual == found.to("cpu").residual == 2.0
    with pytest.raises(SamplesError, match="cannot be joined"):
        Prediction.cat([found, alone])


def test_entropies_of_several_labels_add_up() -> None:
    logits = torch.randn(5, 2, 3, dtype=torch.float64)
    p = logits.sigmoid().numpy()
    each = -(p * np.log(p) + (1 - p) * np.log1p(-p)).sum(-1)
    found = Prediction(logits, "sigmoid")
    np.testing.assert_allclose(found.expected_entropy, each.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.probs, p.mean(0), rtol=1e-12)


def test_certain_samples_have_no_entropy() -> None:
    logits = torch.tensor([[[1000.0, 0.0, -1000.0]]]).repeat(3, 1, 1)
    found = Prediction(logits)
    assert found.entropy == found.expected_entropy == found.mutual_information == 0


@given(st.integers(2, 30), st.integers(2, 5), st.integers(0, 1000))
def test_p_value_compares_the_two_top_classes(samples: int, labels: int, seed: int) -> None:
    logits = np.random.default_rng(seed).normal(size=(samples, 2, labels))
    found = Prediction(torch.from_numpy(logits))
    p = found.sample_probs.numpy()
    for row in range(2):
        second, first = p[:, row].mean(0).argsort()[-2:]
        expected = stats.ttest_ind(p[:, row, first], p[:, row, second], equal_var=False).pvalue
        assert found.p_value[row] == pytest.approx(expected, rel=1e-8)


def test_p_value_of_a_tie_is_one() -> None:
    tie = Prediction(logits_of([[0.4, 0.3, 0.3], [0.2, 0.5, 0.3], [0.6, 0.4, 1e-9]]))
    assert tie.p_value == pytest.approx(1.0)


def test_p_value_without_spread() -> None:
    assert Prediction(logits_of([[0.7, 0.2, 0.1]] * 5)).p_value == 0
    assert Prediction(logits_of([[0.4, 0.4, 0.2]] * 5)).p_value == 1


def test_p_value_of_one_sample_is_nan() -> None:
    assert Prediction(logits_of([[0.7, 0.2, 0.1]])).p_value.isnan().all()


def test_p_value_of_one_output_is_nan() -> None:
    assert Prediction(torch.randn(5, 2, 1), "identity").p_value.isnan().all()


@given(shapes, st.integers(0, 1000), st.floats(0.01, 0.99))
def test_disagreement_and_interval_are_those_of_numpy(
    shape: tuple[int, ...], seed: int, coverage: float
) -> None:
    found = Prediction(torch.from_numpy(np.random.default_rng(seed).normal(size=shape)))
    p = found.sample_probs.numpy()
    chosen = p.mean(0).argmax(-1)
    np.testing.assert_allclose(found.disagreement, (p.argmax(-1) != chosen).mean(0))
    for row, label in enumerate(chosen):
        ends = np.quantile(p[:, row, label], [(1 - coverage) / 2, (1 + coverage) / 2])
        np.testing.assert_allclose(found.interval(coverage)[row], ends, atol=1e-12)


def test_shapes_of_disagreement_and_interval_follow_the_batch() -> None:
    found = Prediction(torch.randn(5, 2, 7, 3))
    assert found.disagreement.shape == (2, 7) and found.interval().shape == (2, 7, 2)


def test_samples_that_agree_have_no_disagreement_and_no_width() -> None:
    found = Prediction(logits_of([[0.7, 0.2, 0.1]] * 5))
    assert found.disagreement == 0
    np.testing.assert_allclose(found.interval(), [[0.7, 0.7]])


@pytest.mark.parametrize("coverage", [0.0, 1.0, -0.5, 90.0, float("nan")])
def test_impossible_coverage_is_refused(coverage: float) -> None:
    with pytest.raises(ConfigError, match=rf"coverage={coverage}.*between 0 and 1"):
        Prediction(torch.randn(5, 2, 3)).interval(coverage)


def test_a_margin_that_hardly_varies_is_no_spread() -> None:
    still = torch.tensor([[[2.0, 0.0]], [[2.01, 0.0]], [[1.99, 0.0]]])
    assert not Prediction(still).is_spread()
    together = still + torch.tensor([0.0, 5.0, -5.0])[:, None, None]  # no probability changes
    assert not Prediction(together).is_spread()
    beside = torch.tensor([[[2.0, 0.0]], [[2.3, 0.0]], [[1.7, 0.0]]])
    assert Prediction(torch.cat([still, beside], 1)).is_spread()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_statistics_of_half_precision_logits_are_exact(dtype: torch.dtype) -> None:
    logits = torch.randn(20, 8, 4).to(dtype)
    found, exact = Prediction(logits), Prediction(logits.double())
    for name in ("probs", "std", "entropy", "mutual_information"):
        gap = (getattr(found, name).double() - getattr(exact, name)).abs().max()
        assert gap < 1e-5, name
