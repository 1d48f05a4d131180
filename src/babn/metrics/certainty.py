"""Whether a model is certain where it is right and uncertain where it is wrong."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from babn.metrics.checks import check_share
from babn.metrics.inputs import Labels, SampleProbs, sampled_examples
from babn.prediction.welch import welch_p_value


@dataclass(frozen=True)
class Pavpu:
    """Answers counted by accuracy and certainty; `float()` gives the PAvPU.

    Attributes:
        accurate_certain: Right answers that the model is certain of.
        accurate_uncertain: Right answers that it is not certain of.
        inaccurate_certain: Wrong answers that it is certain of.
        inaccurate_uncertain: Wrong answers that it is not certain of.
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
        return _ratio(self.accurate_certain + self.inaccurate_uncertain, certain + uncertain)

    @property
    def accurate_given_certain(self) -> float:
        r"""Share of right among certain answers, $n_{ac} / (n_{ac} + n_{ic})$; NaN without any."""
        return _ratio(self.accurate_certain, self.accurate_certain + self.inaccurate_certain)

    @property
    def uncertain_given_inaccurate(self) -> float:
        r"""Share of uncertain among wrong ones, $n_{iu} / (n_{ic} + n_{iu})$; NaN without any."""
        wrong = self.inaccurate_certain + self.inaccurate_uncertain
        return _ratio(self.inaccurate_uncertain, wrong)

    def __float__(self) -> float:
        return self.value


def pavpu(sample_probs: SampleProbs, labels: Labels, alpha: float = 0.05) -> Pavpu:
    """Patch accuracy versus patch uncertainty (Mukhoti and Gal 2018), by a hypothesis test.

    An answer is certain when Welch's t-test between the samples of its two most probable classes
    gives a p-value below `alpha` (Fan et al. 2020).

    Args:
        sample_probs: Two samples of probabilities or more, or a prediction.
        labels: The right classes.
        alpha: Below which p-value an answer is certain.
    """
    check_share(alpha, "alpha", whole=False)
    return Pavpu(*pavpu_counts(*sampled_examples(sample_probs, labels), alpha).tolist())


def pavpu_counts(
    p: Float[Tensor, "sample example label"], y: Int[Tensor, "example"], alpha: float
) -> Int[Tensor, "4"]:
    """Accurate and certain, accurate and uncertain, inaccurate and certain, both not."""
    first, second = two_most_probable(p.mean(0))
    pair = torch.stack([first, second], -1).expand(len(p), -1, -1)
    certain = welch_p_value(*p.gather(-1, pair).unbind(-1)) < alpha
    return torch.bincount(2 * (first != y) + ~certain, minlength=4)


def two_most_probable(
    probs: Float[Tensor, "example label"],
) -> tuple[Int[Tensor, "example"], Int[Tensor, "example"]]:
    """The most probable class and the one after it; of equals, the first."""
    first = probs.argmax(-1)
    return first, probs.scatter(-1, first[:, None], -1.0).argmax(-1)


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")
