"""What goes into the demo and what comes out of it."""

from dataclasses import dataclass

from babn.attention.rule import RuleConfig
from babn.demo.evaluation import Answers, Scores, Texts, score
from babn.demo.models import Source
from babn.demo.portrait import Portrait
from babn.demo.training import Recipe
from babn.errors import ConfigError
from babn.evaluation.comparison import Difference

LARGEST_SEED = 2**32


@dataclass(frozen=True)
class Settings:
    """What the user may choose.

    Attributes:
        model: `auto`, `small`, or the folder of an encoder.
        seed: Decides the order of the texts, the first weights and the samples.
        epochs: Passes over the training texts, in place of the recipe's.
        quick: Whether to train the small model, and only for a moment.
    """

    model: str = "auto"
    seed: int = 0
    epochs: int | None = None
    quick: bool = False

    def __post_init__(self) -> None:
        """Refuses numbers that cannot work."""
        if self.epochs is not None and self.epochs < 1:
            raise ConfigError(f"epochs={self.epochs} is not possible. Give a number from 1 on.")
        if not 0 <= self.seed < LARGEST_SEED:
            raise ConfigError(f"seed={self.seed} is not possible. Give one from 0 to 2^32 - 1.")


@dataclass(frozen=True)
class Attempt:
    """One rule, trained and asked.

    Attributes:
        name: Name of the rule.
        config: Its settings.
        seconds_per_step: Median time of a training step.
        mean: Answers by the posterior mean.
        sampled: Answers by samples; `None` for a rule without noise.
    """

    name: str
    config: RuleConfig
    seconds_per_step: float
    mean: Answers
    sampled: Answers | None

    @property
    def fullest(self) -> Answers:
        """The answers with most to tell about uncertainty: sampled ones, if there are any."""
        return self.sampled or self.mean


@dataclass(frozen=True)
class Row:
    """One row of the table: a rule, how it was asked, and what came out."""

    name: str
    scores: Scores
    seconds_per_step: float


@dataclass(frozen=True)
class Outcome:
    """Everything that the table, the page and the results file tell."""

    settings: Settings
    source: Source
    recipe: Recipe
    intents: tuple[str, ...]
    texts: Texts
    attempts: list[Attempt]
    rows: list[Row]
    differences: dict[str, Difference]
    portraits: list[Portrait]


def rows(attempt: Attempt, texts: Texts, names: tuple[str, ...]) -> list[Row]:
    """The rows of one rule: one for each way it was asked."""
    asked = {"": attempt.mean}
    if attempt.sampled is not None:
        asked = {", mean": attempt.mean, ", sampled": attempt.sampled}
    return [
        Row(f"{attempt.name}{mode}", score(answers, texts, names), attempt.seconds_per_step)
        for mode, answers in asked.items()
    ]
