"""Settings and results of the demo."""

from dataclasses import dataclass

from babn.demo.evaluation import Predictions, Scores, Texts
from babn.demo.examples import Example
from babn.demo.models import Source
from babn.demo.training import Recipe
from babn.errors import ConfigError
from babn.evaluation.comparison import Difference

LARGEST_SEED = 2**32


@dataclass(frozen=True)
class Settings:
    """The options of the demo.

    Attributes:
        model: `auto`, `small`, or the folder of an encoder.
        seed: Seed of the order of the texts, the initial weights and the samples.
        epochs: Passes over the training texts, in place of the recipe's.
        quick: Whether to train the small model for a few seconds only.
    """

    model: str = "auto"
    seed: int = 0
    epochs: int | None = None
    quick: bool = False

    def __post_init__(self) -> None:
        """Validates the numbers."""
        if self.epochs is not None and self.epochs < 1:
            raise ConfigError(f"epochs={self.epochs} is not possible. Give a number from 1 on.")
        if not 0 <= self.seed < LARGEST_SEED:
            raise ConfigError(f"seed={self.seed} is not possible. Give one from 0 to 2^32 - 1.")


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Attributes:
        name: The model, and how it predicts.
        predictions: Its predictions for the test texts.
        scores: Their measures.
        level: The noise level found on the development texts; `None` where there is none.
    """

    name: str
    predictions: Predictions
    scores: Scores
    level: float | None


@dataclass(frozen=True)
class Outcome:
    """Everything that the table, the page and the results file show.

    Attributes:
        settings: What the user chose.
        source: Where the model comes from.
        recipe: How it was trained.
        intents: Names of the classes.
        texts: The test texts.
        rows: The rows of the table, softmax first.
        differences: For each row of BABN its differences from softmax, by measure.
        examples: A sentence that BABN is sure of, and one that it is unsure of.
    """

    settings: Settings
    source: Source
    recipe: Recipe
    intents: tuple[str, ...]
    texts: Texts
    rows: list[Row]
    differences: dict[str, dict[str, Difference]]
    examples: list[Example]
