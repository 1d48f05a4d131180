"""Calibration: how far confidence is from accuracy."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from babn.metrics import bins as binned
from babn.metrics.checks import check_whole
from babn.metrics.inputs import Labels, Probs, answers, examples
from babn.metrics.scores import confidence_and_correct


@dataclass(frozen=True)
class Reliability:
    """Confidence and accuracy in equal-width bins of the confidence, in float64.

    Attributes:
        edges: Where bins begin and end, from 0 to 1; one on an edge is in the lower bin.
        count: Number of examples in each bin.
        confidence: Mean probability of the most probable class; zero in an empty bin.
        accuracy: Share of right answers; zero in an empty bin.
    """

    edges: Float[Tensor, "edge"]
    count: Float[Tensor, "bin"]
    confidence: Float[Tensor, "bin"]
    accuracy: Float[Tensor, "bin"]

    @property
    def share(self) -> Float[Tensor, "bin"]:
        """Share of all examples that are in each bin."""
        return self.count / self.count.sum()


def reliability(probs: Probs, labels: Labels, bins: int = 10) -> Reliability:
    """What a reliability diagram shows: confidence and accuracy in equal-width bins."""
    p, y = examples(probs, labels)
    count, confidence, right = binned.confidence_sums(p, y, check_whole(bins, "bins")).unbind(-1)
    filled = count.clamp(min=1)
    return Reliability(binned.edges(bins, p.device), count, confidence / filled, right / filled)


def ece(probs: Probs, labels: Labels, bins: int = 10) -> float:
    r"""Expected calibration error over equal-width bins of the confidence, from 0 to 1.

    $$\sum_b \frac{n_b}{n} |\mathrm{acc}_b - \mathrm{conf}_b|$$
    """
    sums = binned.confidence_sums(*examples(probs, labels), check_whole(bins, "bins"))
    return binned.mean_gap(sums).item()


def mce(probs: Probs, labels: Labels, bins: int = 10) -> float:
    r"""Maximum calibration error, $\max_b |\mathrm{acc}_b - \mathrm{conf}_b|$ over filled bins."""
    sums = binned.confidence_sums(*examples(probs, labels), check_whole(bins, "bins"))
    return binned.largest_gap(sums).item()


def adaptive_ece(probs: Probs, labels: Labels, bins: int = 10) -> float:
    """Expected calibration error over bins that hold equally many examples.

    The k-th surest of n examples, from 0, is in bin floor(k bins / n). Examples with the same
    confidence share their mean accuracy, so that their order does not matter where a bin ends
    between them (Nguyen and O'Connor 2015, for the confidence in the most probable class).
    """
    confidence, correct = answers(*confidence_and_correct(probs, labels))
    return binned.mean_gap(
        binned.equal_mass_sums(confidence, correct, check_whole(bins, "bins"))
    ).item()


def classwise_ece(probs: Probs, labels: Labels, bins: int = 10) -> float:
    r"""Classwise or static calibration error (Kull et al. 2019, Nixon et al. 2019).

    $$\frac1C \sum_c \sum_b \frac{n_{cb}}{n} |\mathrm{freq}_{cb} - \mathrm{prob}_{cb}|$$

    with the frequency of class $c$, and its mean probability, among the examples whose probability
    of that class is in bin $b$.
    """
    sums = binned.class_sums(*examples(probs, labels), check_whole(bins, "bins"))
    return binned.mean_gap(sums).item()


def top_label_ece(probs: Probs, labels: Labels, bins: int = 10) -> float:
    r"""Top-label calibration error (Gupta and Ramdas 2022): the bins of each predicted class apart.

    $$\sum_c \sum_b \frac{n_{cb}}{n} |\mathrm{acc}_{cb} - \mathrm{conf}_{cb}|$$

    over the examples whose most probable class is $c$. Never below `ece`.
    """
    sums = binned.top_label_sums(*examples(probs, labels), check_whole(bins, "bins"))
    return binned.mean_gap(sums).item()
