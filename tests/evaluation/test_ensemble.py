"""Deep ensembles."""

import pytest
import torch
from small_evaluations import labels, logits

import babn
from babn.errors import ConfigError
from babn.evaluation.predictions import ensemble
from babn.prediction.result import Prediction


def test_an_ensemble_averages_its_members_probabilities() -> None:
    members = [Prediction(logits(seed)) for seed in range(5)]
    together = ensemble(members)
    torch.testing.assert_close(together.probs, torch.stack([m.probs for m in members]).mean(0))
    single = sum(babn.metrics.nll(m.probs, labels()) for m in members) / 5
    assert babn.metrics.nll(together.probs, labels()) < single  # log is concave
    assert (together.mutual_information > 0).all()


def test_one_member_is_itself() -> None:
    assert torch.equal(ensemble([Prediction(logits())]).probs, Prediction(logits()).probs)


def test_members_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="members=\\[\\]"):
        ensemble([])
    with pytest.raises(ConfigError, match="equally many samples"):
        ensemble([Prediction(logits()), Prediction(logits(samples=2))])
    with pytest.raises(ConfigError, match="activations"):
        ensemble([Prediction(logits()), Prediction(logits(), "sigmoid")])
