"""Whether two rows of the table differ by more than the choice of test texts explains."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from babn.demo.evaluation import Answers
from babn.demo.metrics import bin_places

RESAMPLES = 2000

MORE_IS_BETTER = {"accuracy": True, "NLL": False, "ECE": False, "out-of-scope AUROC": True}


@dataclass(frozen=True)
class Difference:
    """A measure of one row less that of another, with a 95 % interval.

    Attributes:
        measure: Name of the measure.
        value: The difference.
        low: Lower end of the interval.
        high: Upper end.
        more_is_better: Whether a positive difference is a gain.
    """

    measure: str
    value: float
    low: float
    high: float
    more_is_better: bool

    @property
    def verdict(self) -> str:
        """`better`, `worse`, or `no clear difference` if the interval holds zero."""
        if self.low <= 0 <= self.high:
            return "no clear difference"
        return "better" if (self.value > 0) == self.more_is_better else "worse"


def compare(
    ours: Answers, theirs: Answers, labels: Int[Tensor, "text"], seed: int
) -> list[Difference]:
    """Differences in the four measures, with intervals from drawing the texts anew many times."""
    inside, outside = _draws(len(labels), seed), _draws(len(ours.outside.entropy), seed + 1)
    values, others = (measure(each, labels, inside, outside) for each in (ours, theirs))
    return [_difference(name, values[name] - others[name]) for name in MORE_IS_BETTER]


def measure(
    answers: Answers,
    labels: Int[Tensor, "text"],
    inside: Float[Tensor, "draw text"],
    outside: Float[Tensor, "draw other"],
) -> dict[str, Float[Tensor, "draw"]]:
    """The four measures for each draw; a draw is how often every text counts, with mean one."""
    probs = answers.clear.probs.double()
    confidence, answer = probs.max(-1)
    right = (answer == labels).double()
    surprise = -probs.gather(-1, labels[:, None]).clamp(min=1e-12).log()[:, 0]
    gaps = F.one_hot(bin_places(confidence)).double() * (confidence - right)[:, None]
    scores = answers.outside.entropy[:, None], answers.clear.entropy[None, :]
    wins = (scores[0] > scores[1]).double() + 0.5 * (scores[0] == scores[1]).double()
    texts, pairs = len(labels), wins.numel()
    return {
        "accuracy": inside @ right / texts,
        "NLL": inside @ surprise / texts,
        "ECE": (inside @ gaps).abs().sum(-1) / texts,
        "out-of-scope AUROC": ((outside @ wins) * inside).sum(-1) / pairs,
    }


def _draws(size: int, seed: int) -> Float[Tensor, "draw text"]:
    """How often each text is drawn: first every one once, then with replacement."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(size, (RESAMPLES, size), generator=generator)
    counts = torch.zeros(RESAMPLES, size, dtype=torch.float64)
    counts.scatter_add_(1, drawn, torch.ones_like(counts))
    return torch.cat([torch.ones(1, size, dtype=torch.float64), counts])


def _difference(name: str, values: Float[Tensor, "draw"]) -> Difference:
    low, high = values[1:].quantile(values.new_tensor([0.025, 0.975])).tolist()
    return Difference(name, values[0].item(), low, high, MORE_IS_BETTER[name])
