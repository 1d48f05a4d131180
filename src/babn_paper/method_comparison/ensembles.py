"""Deep ensembles of any method."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from babn.evaluation.predictions import ensemble
from babn.methods.interface import Fitted, Method, choose, labels_of
from babn.methods.trained_models import Batches, Models, Variant
from babn.prediction.result import Prediction

APART = 1000
"""Distance between the seeds of an ensemble's members, so that ensembles share no member."""


@dataclass(frozen=True)
class Ensemble(Method):
    """The mean prediction of several trainings.

    [Lakshminarayanan et al. 2017](https://arxiv.org/abs/1612.01474).

    Attributes:
        name: Name in tables.
        member: The method of each member.
        size: Number of members; the first has the seed itself.
        temperature: Whether to fit a temperature for the whole ensemble.
    """

    name: str
    member: Method
    size: int = 5
    temperature: bool = False
    code: ClassVar[str] = """models = [train(seed) for seed in range(5)]
probs = torch.stack([model(**batch).logits.softmax(-1) for model in models]).mean(0)"""

    def seeds(self, seed: int) -> list[int]:
        """The seeds of the members."""
        return [seed + APART * i for i in range(self.size)]

    def trainings(self, seed: int) -> list[tuple[Variant, int]]:
        """The models of all members."""
        return [each for own in self.seeds(seed) for each in self.member.trainings(own)]

    def fit(self, models: Models, seed: int) -> Fitted:
        """Fits every member, and then the temperature."""
        members = [self.member.fit(models, own) for own in self.seeds(seed)]

        def joined(batches: Batches) -> Prediction:
            return ensemble(_equal_samples([member.predict(batches) for member in members]))

        data, temperature = models.problem.development, 1.0
        if self.temperature:
            _, temperature = choose({0.0: joined(data)}, labels_of(data), True)
        return Fitted(
            lambda batches: joined(batches).tempered(temperature),
            self.trainings(seed),
            sum(member.passes for member in members),
            {"temperature": temperature} if self.temperature else {},
            sum(member.tried for member in members),
        )


def _equal_samples(found: Sequence[Prediction]) -> list[Prediction]:
    """Repeats the sample of deterministic members, so that all have equally many."""
    most = max(len(each.sample_logits) for each in found)
    return [
        Prediction(each.sample_logits.repeat(most // len(each.sample_logits), 1, 1))
        for each in found
    ]
