"""PAvPU: is the model certain where it is right, and uncertain where it is wrong?"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from babn.errors import MetricInputError
from babn.metrics.accuracy_nll_brier import correctness
from babn.metrics.checks import FlatLabels, FlatSamples, Labels, SampleProbs, sampled_examples
from babn.prediction.result import of_top_two
from babn.prediction.t_tests import welch_p_value
from babn.validation import check_share


@dataclass(frozen=True)
class Pavpu:
    """Predictions counted by accuracy and certainty; `float()` gives the PAvPU.

    Attributes:
        accurate_certain: Correct predictions that the model is certain of.
        accurate_uncertain: Correct predictions that the model is uncertain of.
        inaccurate_certain: Wrong predictions that the model is certain of.
        inaccurate_uncertain: Wrong predictions that the model is uncertain of.
    """

    accurate_certain: int
    accurate_uncertain: int
    inaccurate_certain: int
    inaccurate_uncertain: int

    @property
    def value(self) -> float:
        r"""PAvPU, $(n_{ac} + n_{iu}) / (n_{ac} + n_{au} + n_{ic} + n_{iu})$."""
        certain = self.accurate_certain + self.inaccurate_certain
        uncertain = self.accurate_uncertain + self.inaccurate_uncertain
        return (self.accurate_certain + self.inaccurate_uncertain) / (certain + uncertain)

    def __float__(self) -> float:
        return self.value


def pavpu(sample_probs: SampleProbs, labels: Labels, alpha: float = 0.05) -> Pavpu:
    """Patch accuracy versus patch uncertainty, by a hypothesis test.

    The measure of Mukhoti and Gal (2018, <https://arxiv.org/abs/1811.12709>). A prediction is
    certain if Welch's t-test between the samples of its two most probable classes gives a p-value
    below `alpha` (Fan et al. 2020, <https://arxiv.org/abs/2010.10604>).

    Args:
        sample_probs: Two or more samples of the probabilities, or a prediction.
        labels: The correct classes.
        alpha: Significance level of the test.
    """
    check_share("alpha", alpha, error=MetricInputError)
    accurate, certain = accurate_and_certain(*sampled_examples(sample_probs, labels), alpha)
    return Pavpu(*torch.bincount(2 * ~accurate + ~certain, minlength=4).tolist())


def accurate_and_certain(
    p: FlatSamples, y: FlatLabels, alpha: float
) -> tuple[Bool[Tensor, "example"], Bool[Tensor, "example"]]:
    """Whether each prediction is correct, and whether the model is certain of it."""
    mean = p.mean(0)
    certain = welch_p_value(*of_top_two(p, mean)) < alpha
    return correctness(mean, y).bool(), certain
