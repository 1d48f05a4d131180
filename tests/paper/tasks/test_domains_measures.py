"""Measures over parts, against plain computations."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from sklearn.metrics import log_loss, roc_auc_score, roc_curve
from torch import Tensor

from babn.evaluation.predictions import Evaluation
from babn.prediction.result import Prediction
from babn_paper.tasks.domains import NLI
from babn_paper.tasks.text_task import TextPredictions

SIZES = {"dev": 150, "test": 130, "out": 170}
SHARPNESS = {"dev": 4.0, "test": 4.0, "out": 1.5}


def predictions(part: str, samples: int, seed: int = 0) -> TextPredictions:
    """Answers that are too sure, and less so elsewhere."""
    generator = torch.Generator().manual_seed(seed + len(part))
    labels = torch.randint(3, (SIZES[part],), generator=generator)
    centre = torch.randn(SIZES[part], 3, generator=generator)
    centre += torch.nn.functional.one_hot(labels, 3)
    spread = torch.randn(samples, SIZES[part], 3, generator=generator)
    logits = SHARPNESS[part] * centre + spread
    return TextPredictions(Evaluation("", Prediction(logits), labels), ("accuracy",))


def probs(found: TextPredictions, temperature: float = 1.0) -> np.ndarray:
    logits = found.evaluation.prediction.sample_logits.double()
    return (logits / temperature).softmax(-1).mean(0).numpy()


def entropy(p: np.ndarray) -> np.ndarray:
    return -(p * np.log(p)).sum(-1)


def plain_ece(p: np.ndarray, labels: Tensor) -> float:
    sure, right = p.max(-1), p.argmax(-1) == labels.numpy()
    bins = np.minimum(np.ceil(sure * 10), 10)
    gaps = [abs((right - sure)[bins == i].mean()) * (bins == i).mean() for i in set(bins)]
    return float(sum(gaps))


@pytest.fixture(params=[1, 5])
def found(request: pytest.FixtureRequest) -> dict[str, TextPredictions]:
    return {part: predictions(part, request.param) for part in ("test", "out", "dev")}


def test_the_temperature_is_that_of_dev(found: dict[str, TextPredictions]) -> None:
    dev = found["dev"]
    labels = dev.evaluation.labels.numpy()
    best = minimize_scalar(
        lambda t: log_loss(labels, probs(dev, t)), bounds=(0.05, 50), method="bounded"
    ).x
    measures = NLI.across(found)
    for part in ("test", "out"):
        right = found[part].evaluation.labels
        p = probs(found[part], best)
        measured = measures[part]
        assert measured["NLL + TS (in domain)"] == pytest.approx(log_loss(right, p), rel=1e-4)
        assert measured["ECE-10 + TS (in domain)"] == pytest.approx(plain_ece(p, right), abs=2e-3)
    # Answers in the own domain were too sure.
    assert measures["test"]["NLL + TS (in domain)"] < log_loss(
        found["test"].evaluation.labels, probs(found["test"])
    )


def test_out_is_told_from_test_by_uncertainty(found: dict[str, TextPredictions]) -> None:
    measured = NLI.across(found)["out"]
    inside, outside = (entropy(probs(found[part])) for part in ("test", "out"))
    foreign = np.r_[np.zeros(len(inside)), np.ones(len(outside))]
    scores = np.r_[inside, outside]
    area = roc_auc_score(foreign, scores)
    assert measured["OOD AUROC (entropy)"] == pytest.approx(area, abs=1e-6) and area > 0.5
    false, true, _ = roc_curve(foreign, scores, drop_intermediate=False)
    assert measured["OOD FPR95 (entropy)"] == pytest.approx(false[true >= 0.95].min(), abs=1e-6)
    several = len(found["test"].evaluation.prediction.sample_logits) > 1
    assert ("OOD AUROC (mutual information)" in measured) == several
    if several:
        both = [found[part].evaluation.prediction.sample_probs.double() for part in ("test", "out")]
        gains = [entropy(p.mean(0).numpy()) - entropy(p.numpy()).mean(0) for p in both]
        area = roc_auc_score(foreign, np.concatenate(gains))
        assert measured["OOD AUROC (mutual information)"] == pytest.approx(area, abs=1e-4)


def test_dev_and_out_do_not_change_what_is_said_of_others(
    found: dict[str, TextPredictions],
) -> None:
    other = found | {"out": predictions("out", 2, seed=9)}
    assert NLI.across(other)["test"] == NLI.across(found)["test"]
    assert "dev" not in NLI.across(found)


def test_parts_that_are_not_there_are_left_out(found: dict[str, TextPredictions]) -> None:
    alone = NLI.across({"test": found["test"]})
    assert alone == {"test": {}}
    pair = NLI.across({part: found[part] for part in ("test", "out")})
    assert pair["test"] == {} and "OOD AUROC (entropy)" in pair["out"]
    assert not any("TS" in name for name in pair["out"])
    tempered = NLI.across({part: found[part] for part in ("test", "dev")})
    assert tempered.keys() == {"test"} and len(tempered["test"]) == 2
