"""Decisions from predictions: abstention, and conformal prediction sets.

Both are fitted to development data and come with a guarantee for data of the same distribution.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from babn.errors import ConfigError
from babn.metrics.accuracy_nll_brier import confidence_and_correct
from babn.prediction.result import Prediction, check_classes
from babn.validation import check_choices, check_share

Score = Literal["entropy", "mutual_information", "disagreement", "confidence"]

LEVELS = 20
"""Number of coverages that `fit_abstention` tries."""


@dataclass(frozen=True)
class Abstention:
    """Answers the examples whose uncertainty is at most a threshold.

    Attributes:
        threshold: The largest uncertainty that is answered; minus infinity to abstain from all.
        score: The uncertainty score: an attribute of the prediction, or `"confidence"` for one
            minus the largest probability.
        coverage: Share of the development examples that are answered.
        risk: Share of errors among the answered examples.
        risk_bound: Upper confidence bound of the risk on new data.
    """

    threshold: float
    score: Score
    coverage: float
    risk: float
    risk_bound: float

    def __post_init__(self) -> None:
        """Validates the fields."""
        check_choices(self)

    def uncertainty(self, prediction: Prediction) -> Float[Tensor, "*example"]:
        """The score of each example, larger for less certain ones."""
        if self.score == "confidence":
            return 1 - prediction.probs.amax(-1)
        return getattr(prediction, self.score)

    def answers(self, prediction: Prediction) -> Bool[Tensor, "*example"]:
        """Whether to answer each example; the model abstains from the others."""
        return self.uncertainty(prediction) <= self.threshold

    def evaluate(self, prediction: Prediction, labels: Int[Tensor, "example"]) -> dict[str, float]:
        """Coverage and risk on other data: share of answered examples, and of errors among them."""
        wrong, answered = _wrong(prediction, labels), self.answers(prediction).cpu()
        risk = wrong[answered].double().mean()  # NaN if none is answered
        return {"coverage": float(answered.double().mean()), "risk": float(risk)}


def fit_abstention(
    prediction: Prediction,
    labels: Int[Tensor, "example"],
    *,
    risk: float | None = None,
    coverage: float | None = None,
    score: Score = "entropy",
    confidence: float = 0.95,
) -> Abstention:
    r"""Fits a rule for abstaining, to a maximum risk or to a coverage.

    With `risk`, the error rate among answered examples is at most `risk` with the given confidence.
    If $n$ development examples are answered, with $e$ errors, the upper bound of the risk is the
    $b$ with $P(\mathrm{Binomial}(n, b) \le e) = 1 - \mathrm{confidence}$. The coverage grows in
    steps of 5 % until the bound first exceeds `risk`; tests in a fixed order need no correction for
    their number (Angelopoulos et al. 2021, <https://arxiv.org/abs/2110.01052>).

    Args:
        prediction: Predictions for development data that the model was not trained on.
        labels: The right classes.
        risk: Largest share of errors among answered examples.
        coverage: Share of examples to answer, instead of a risk.
        score: The uncertainty score.
        confidence: Probability with which the bound of the risk holds.

    Example:
        >>> prediction = Prediction(torch.tensor([[[4.0, 0.0]] * 80 + [[0.1, 0.0]] * 20]))
        >>> labels = torch.tensor([0] * 90 + [1] * 10)
        >>> fit_abstention(prediction, labels, risk=0.1).coverage
        0.8
    """
    if (risk is None) == (coverage is None):
        raise ConfigError(f"risk={risk} and coverage={coverage}. Give one of them.")
    check_share(*(("risk", risk) if coverage is None else ("coverage", coverage)))
    check_share("confidence", confidence)
    found = Abstention(-math.inf, score, 0.0, 0.0, 0.0)
    wrong = _wrong(prediction, labels)
    values = found.uncertainty(prediction).double().cpu()
    total = len(values)
    tested = [coverage or 1.0] if risk is None else _tested_shares(total, risk, 1 - confidence)
    for share in tested:
        least = max(math.ceil(share * total - 1e-9), 1)
        threshold = float(values.kthvalue(least).values)
        answered = values <= threshold  # more than `least` if several have this uncertainty
        count, mistakes = int(answered.sum()), int(wrong[answered].sum())
        bound = risk_bound(mistakes, count, 1 - confidence)
        if risk is not None and bound > risk:
            break
        found = Abstention(threshold, score, count / total, mistakes / count, bound)
    return found


def _tested_shares(total: int, risk: float, failure: float) -> list[float]:
    """Coverages in the order of their tests.

    The first is the smallest coverage that would pass at a quarter of the risk. With fewer examples
    the bound is so wide that the first test would fail and end the sequence.
    """
    shares = [i / LEVELS for i in range(1, LEVELS + 1)]
    for index, share in enumerate(shares):
        count = max(int(share * total), 1)
        if risk_bound(int(count * risk / 4), count, failure) <= risk:
            return shares[index:]
    return shares[-1:]


def _wrong(prediction: Prediction, labels: Tensor) -> Bool[Tensor, "example"]:
    """Whether each prediction is wrong; validates predictions and labels."""
    check_classes(prediction, "decisions need one row of probabilities per example")
    return ~confidence_and_correct(prediction, labels)[1].cpu()


def risk_bound(errors: int, count: int, failure: float) -> float:
    r"""The $b$ with $P(\mathrm{Binomial}(n, b) \le e) = \delta$: Clopper and Pearson's upper bound.

    Args:
        errors: Number of errors $e$.
        count: Number of examples $n$.
        failure: Probability $\delta$ that the bound is exceeded.

    Example:
        >>> round(risk_bound(0, 100, 0.05), 4)  # the rule of three: about 3 / n
        0.0295
    """
    if errors >= count:
        return 1.0
    i = torch.arange(errors + 1, dtype=torch.float64)
    n = torch.tensor(float(count), dtype=torch.float64)
    log_choices = torch.lgamma(n + 1) - torch.lgamma(i + 1) - torch.lgamma(n - i + 1)
    low, high = errors / count, 1.0
    for _ in range(40):
        b = (low + high) / 2
        log_at_most = (log_choices + i * math.log(b) + (n - i) * math.log1p(-b)).logsumexp(0)
        low, high = (b, high) if log_at_most > math.log(failure) else (low, b)
    return high


@dataclass(frozen=True)
class ConformalSets:
    """Sets of classes that contain the right one with a given probability.

    Attributes:
        method: How classes are scored.
        coverage: The guaranteed probability.
        threshold: Largest score of a class in a set.
    """

    method: Literal["split", "adaptive"]
    coverage: float
    threshold: float

    def __post_init__(self) -> None:
        """Validates the fields."""
        check_choices(self)

    def sets(self, prediction: Prediction) -> Bool[Tensor, "example label"]:
        """Whether each class is in the set of each example; the most probable one always is."""
        chosen = conformal_scores(prediction.probs, self.method) <= self.threshold
        return chosen.scatter(-1, prediction.probs.argmax(-1, keepdim=True), True)

    def evaluate(self, prediction: Prediction, labels: Int[Tensor, "example"]) -> dict[str, float]:
        """Coverage and size on other data: share of sets with the right class, and their size."""
        _wrong(prediction, labels)
        sets = self.sets(prediction).cpu()
        right = sets.gather(-1, labels.cpu().unsqueeze(-1)).double().mean()
        return {"coverage": float(right), "size": float(sets.sum(-1).double().mean())}


def fit_conformal(
    prediction: Prediction,
    labels: Int[Tensor, "example"],
    *,
    coverage: float = 0.9,
    method: Literal["split", "adaptive"] = "split",
) -> ConformalSets:
    r"""Fits prediction sets to development data by split conformal prediction.

    The threshold is the $\lceil (n + 1)\,c \rceil$-th smallest score of the right classes of $n$
    examples, so that sets of new examples from the same distribution contain the right class with
    probability at least $c$, whatever the model (Angelopoulos and Bates 2021,
    <https://arxiv.org/abs/2107.07511>).

    Args:
        prediction: Predictions for development data that the model was not trained on; if possible
            not the data that its noise level or temperature was fitted to.
        labels: The right classes.
        coverage: The probability $c$.
        method: `"split"` scores a class by one minus its probability, which gives the smallest
            sets; `"adaptive"` by the probability of all classes up to it, the most probable first
            (Romano et al. 2020, <https://arxiv.org/abs/2006.02544>), whose sets grow with the
            uncertainty of an example.

    Example:
        >>> prediction = Prediction(torch.tensor([[[4.0, 0.0]] * 90 + [[0.1, 0.0]] * 10]))
        >>> labels = torch.tensor([0] * 95 + [1] * 5)
        >>> fit_conformal(prediction, labels, coverage=0.9).sets(prediction).sum(-1).unique()
        tensor([1])
    """
    check_share("coverage", coverage)
    _wrong(prediction, labels)
    scores = conformal_scores(prediction.probs, method)
    own = scores.gather(-1, labels.to(scores.device).unsqueeze(-1)).flatten().sort().values
    rank = math.ceil((len(own) + 1) * coverage)
    threshold = float(own[rank - 1]) if rank <= len(own) else math.inf
    return ConformalSets(method, coverage, threshold)


def conformal_scores(
    probs: Float[Tensor, "example label"], method: str
) -> Float[Tensor, "example label"]:
    """The nonconformity score of each class, larger for less probable ones."""
    probs = probs.double()
    if method == "split":
        return 1 - probs
    sorted_probs, order = probs.sort(-1, descending=True)
    return torch.empty_like(probs).scatter(-1, order, sorted_probs.cumsum(-1))
