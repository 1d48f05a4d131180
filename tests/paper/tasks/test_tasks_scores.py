"""The official scores, held against scikit-learn and scipy."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import pearsonr, rankdata, spearmanr
from sklearn.metrics import f1_score, matthews_corrcoef

from babn.prediction.result import Prediction
from babn_paper.tasks.scores import SCORES, f1, matthews, pearson, ranks, spearman

CLASSES = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=40)
# Halves collide often, so that there are ties.
VALUES = st.lists(
    st.tuples(st.integers(-6, 6).map(lambda x: x / 2), st.integers(0, 10).map(lambda x: x / 2)),
    min_size=2,
    max_size=40,
)


@pytest.mark.filterwarnings("ignore:A single label was found")
@given(CLASSES)
def test_f1_and_matthews_are_those_of_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    chosen, labels = torch.tensor(pairs).unbind(1)
    expected = f1_score(labels.numpy(), chosen.numpy(), zero_division=0)
    assert f1(chosen, labels) == pytest.approx(expected)
    assert matthews(chosen, labels) == pytest.approx(
        matthews_corrcoef(labels.numpy(), chosen.numpy()), abs=1e-12
    )


@given(VALUES)
def test_correlations_are_those_of_scipy(pairs: list[tuple[float, float]]) -> None:
    x, y = torch.tensor(pairs, dtype=torch.float64).unbind(1)
    if len(x.unique()) == 1 or len(y.unique()) == 1:
        assert math.isnan(pearson(x, y)) and math.isnan(spearman(x, y))
        return
    expected = pearsonr(x.numpy(), y.numpy()).statistic, spearmanr(x.numpy(), y.numpy()).statistic
    assert (pearson(x, y), spearman(x, y)) == pytest.approx(expected, abs=1e-9)


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=30))
def test_equal_values_share_the_mean_of_their_ranks(values: list[int]) -> None:
    assert ranks(torch.tensor(values)).tolist() == rankdata(values).tolist()


def test_a_constant_that_is_no_binary_fraction_is_still_constant() -> None:
    assert math.isnan(pearson(torch.full((7,), 0.1), torch.arange(7.0)))
    assert matthews(torch.ones(3).long(), torch.tensor([0, 1, 1])) == 0


def test_an_answer_that_is_no_number_spoils_both_correlations() -> None:
    x, y = torch.tensor([1.0, math.nan, 3.0]), torch.arange(3.0)
    assert math.isnan(pearson(x, y)) and math.isnan(spearman(x, y))


def test_scores_take_the_mean_over_samples() -> None:
    logits = torch.tensor([[[4.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [0.0, 1.0]]])
    labels = torch.tensor([0, 1])
    found = {name: SCORES[name](Prediction(logits), labels) for name in ("accuracy", "F1")}
    assert found == {"accuracy": 1, "F1": 1}
    values = Prediction(torch.tensor([[[1.0], [2.0]], [[3.0], [6.0]]]), "identity")
    assert SCORES["MSE"](values, torch.tensor([2.0, 2.0])) == 2
