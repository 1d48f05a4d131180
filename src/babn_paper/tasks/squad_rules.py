"""The official rules by which answers to SQuAD are judged (evaluate-v1.1 and evaluate-v2.0)."""

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized(text: str) -> str:
    """Lower case, without punctuation, articles and superfluous white space."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


@dataclass(frozen=True)
class Judge:
    """How well a text answers a question.

    Attributes:
        unanswerable: Whether the rules of 2.0 hold, where an empty text means no answer, and
            answers of which nothing is left after normalising are not looked at.
    """

    unanswerable: bool

    def exact(self, text: str, golds: Sequence[str]) -> float:
        """One if the text is one of the right answers, after normalising."""
        return float(normalized(text) in {normalized(gold) for gold in self._golds(golds)})

    def f1(self, text: str, golds: Sequence[str]) -> float:
        """The largest F1 between the words of the text and those of a right answer."""
        return max(self._overlap(text, gold) for gold in self._golds(golds))

    def _golds(self, golds: Sequence[str]) -> Sequence[str]:
        return [gold for gold in golds if normalized(gold)] or [""] if self.unanswerable else golds

    def _overlap(self, text: str, gold: str) -> float:
        words, right = normalized(text).split(), normalized(gold).split()
        if self.unanswerable and not (words and right):
            return float(words == right)
        same = (Counter(words) & Counter(right)).total()
        return 2 * same / (len(words) + len(right)) if same else 0.0


def best_threshold(
    scores: Float[Tensor, "question"],
    odds: Float[Tensor, "question"],
    answerable: Bool[Tensor, "question"],
) -> tuple[float, float]:
    r"""The best mean score over all thresholds of the odds, and the threshold.

    As the official script does it: the threshold is chosen on the questions that it is judged on.
    A question counts as unanswerable if its odds are above the threshold; `-inf` means that all do.

    Args:
        scores: Of the text that is answered if the question counts as answerable.
        odds: $\log p(\text{no answer}) - \log p(\text{text})$.
        answerable: Which questions are.
    """
    order = odds.argsort(stable=True)
    gain = scores.double().where(answerable, -1.0)[order].cumsum(0)
    best, place = gain.max(0)
    silent = (~answerable).sum().item()
    if best <= 0:
        return silent / len(odds), -torch.inf
    return (silent + best.item()) / len(odds), odds[order[place]].item()
