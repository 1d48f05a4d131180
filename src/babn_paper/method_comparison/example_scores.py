"""Scores of the examples of a test set, and the measures that are computed from them."""

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from babn import metrics
from babn.metrics.accuracy_nll_brier import correctness, negative_log_probs
from babn.metrics.calibration_error import binned_sums, largest_gap, mean_gap
from babn.metrics.checks import examples
from babn.prediction.result import Prediction
from babn_paper.method_comparison.interface import labels_of
from babn_paper.method_comparison.trained_models import Batches

BINS = 10
"""Bins of the calibration error."""

LOWER_IS_BETTER = {
    "accuracy": False,
    "NLL": True,
    "ECE": True,
    "error AUROC": False,
    "outside AUROC": False,
    "outside FPR95": True,
}
"""The measures; errors are detected by the entropy, outside examples by the method's novelty."""


@dataclass(frozen=True)
class Scores:
    """Numbers for each example of a test set, in float64.

    Attributes:
        correct: 1 for a correct prediction, 0 for a wrong one.
        nll: Negative log likelihood of the label.
        confidence: Probability of the most probable class.
        entropy: Entropy of the predictive distribution.
        outside: Entropy or novelty of out-of-domain examples; empty if there are none.
        novelty: Novelty of the examples, if it is used in place of the entropy.
    """

    correct: Float[Tensor, "example"]
    nll: Float[Tensor, "example"]
    confidence: Float[Tensor, "example"]
    entropy: Float[Tensor, "example"]
    outside: Float[Tensor, "other"]
    novelty: Float[Tensor, "example"] | None = None

    @classmethod
    def of(
        cls,
        found: Prediction,
        batches: Batches,
        outside: Prediction | None = None,
        novelty: tuple[Tensor, Tensor] | None = None,
    ) -> "Scores":
        """The scores of a prediction for labelled batches.

        Args:
            found: The prediction.
            batches: The batches.
            outside: The prediction for out-of-domain examples.
            novelty: Novelty of the examples and of the out-of-domain ones, in place of the entropy.
        """
        p, y = examples(found.probs.double(), labels_of(batches))
        own, others = None, p.new_zeros(0) if outside is None else outside.entropy.double()
        if novelty is not None:
            own, others = (x.double() for x in novelty)
        entropy = found.entropy.double()
        return cls(correctness(p, y), negative_log_probs(p, y), p.amax(-1), entropy, others, own)

    def drawn(
        self, rows: Int[Tensor, "drawn"], others: Int[Tensor, "drawn_too"] | None
    ) -> "Scores":
        """The scores of some examples."""
        return Scores(
            self.correct[rows],
            self.nll[rows],
            self.confidence[rows],
            self.entropy[rows],
            self.outside if others is None else self.outside[others],
            None if self.novelty is None else self.novelty[rows],
        )

    def measures(self) -> dict[str, float]:
        """The measures, without those that have nothing to detect."""
        sums = binned_sums(self.confidence, self.correct, BINS)
        right, wrong = self.entropy[self.correct == 1], self.entropy[self.correct == 0]
        found = {
            "accuracy": float(self.correct.mean()),
            "NLL": float(self.nll.mean()),
            "ECE": float(mean_gap(sums)),
            "MCE": float(largest_gap(sums)),
        }
        if len(right) and len(wrong):
            found["error AUROC"] = metrics.auroc(right, wrong)
        if len(self.outside):
            own = self.entropy if self.novelty is None else self.novelty
            found["outside AUROC"] = metrics.auroc(own, self.outside)
            found["outside FPR95"] = metrics.fpr95(own, self.outside)
        return found
