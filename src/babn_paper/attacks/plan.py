"""The plan of an attack: recipe, threat model, seed and part of the data."""

from dataclasses import dataclass
from typing import Literal, get_args

from babn.errors import ConfigError
from babn.validation import check_at_least, check_choices, check_count
from babn_paper.experiments.experiment import Experiment

Recipe = Literal["textfooler", "textbugger", "bae"]
"""[Jin et al. 2020](https://arxiv.org/abs/1907.11932),
[Li et al. 2019](https://arxiv.org/abs/1812.05271),
[Garg and Ramakrishnan 2020](https://arxiv.org/abs/2004.01970)."""

RECIPES: dict[Recipe, str] = {"textfooler": "TextFooler", "textbugger": "TextBugger", "bae": "BAE"}
"""Names of the recipes in tables."""

Threat = Literal["mean", "sample", "average"]
"""Prediction for a query: at the posterior mean, by one new sample, or averaged over samples."""

THREATS: dict[Threat, str] = {
    "mean": "predictions for queries are at the posterior mean",
    "sample": "the prediction for every query is one new sample of attention",
    "average": "the prediction for every query is averaged over {samples} new samples of attention",
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan of an attack.

    Attributes:
        recipe: The attack recipe.
        threat: The threat model, which determines the prediction for a query.
        samples: Number of samples that `"average"` averages over; 1 for other threat models.
        seed: Seed of the choice and order of examples and of all noise.
        part: The part of the data that examples are taken from.
    """

    recipe: Recipe
    threat: Threat = "mean"
    samples: int = 1
    seed: int = 0
    part: str = "dev"

    def __post_init__(self) -> None:
        """Validates the fields."""
        check_choices(self)
        check_count("samples", self.samples)
        check_at_least("seed", self.seed, 0)
        if self.threat != "average" and self.samples != 1:
            raise ConfigError(f"samples={self.samples} does not apply to threat={self.threat!r}.")

    @property
    def name(self) -> str:
        """The name of the attack's folder."""
        return f"{self.recipe}-{self.threat}"

    @property
    def explanation(self) -> str:
        """A description of the threat model."""
        return THREATS[self.threat].format(samples=self.samples)


def threats_for(experiment: Experiment, names: str | None = None) -> tuple[Threat, ...]:
    """The threat models that apply to a model.

    Args:
        experiment: The experiment of the model.
        names: Comma-separated names to choose from; by default all threat models.
    """
    found = parse_threats(names)
    if experiment.method == "softmax":
        found = tuple(name for name in found if name == "mean")
    if not found:
        raise ConfigError(
            f"threat={names!r} needs random attention, but method='softmax' has none. Give mean."
        )
    return found


def parse_threats(names: str | None) -> tuple[Threat, ...]:
    """Parses comma-separated threat models; all of them for `None`."""
    known: tuple[Threat, ...] = get_args(Threat)
    wanted = known if names is None else [name.strip() for name in names.split(",")]
    if unknown := [name for name in wanted if name not in known]:
        raise ConfigError(f"threat={unknown[0]!r} is not known. Choose from {list(known)}.")
    return tuple(name for name in known if name in wanted)
