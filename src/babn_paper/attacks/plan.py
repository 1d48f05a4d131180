"""What an attack is: all that decides its result beside the model, the data and the resources."""

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from babn.errors import ConfigError
from babn.validation import check_at_least, check_choices, check_count
from babn_paper.experiments.experiment import Experiment

Recipe = Literal["textfooler", "textbugger", "bae"]
"""Jin et al. 2020, Li et al. 2019, Garg & Ramakrishnan 2020."""

RECIPES: dict[Recipe, str] = {"textfooler": "TextFooler", "textbugger": "TextBugger", "bae": "BAE"}
"""The recipes as tables call them."""

Threat = Literal["mean", "sample", "average"]
"""What answers a query: the posterior mean, one fresh sample, or the average of fresh samples."""

THREATS: dict[Threat, str] = {
    "mean": "every query is answered at the posterior mean",
    "sample": "every query is answered by one fresh sample of attention",
    "average": "every query is answered by the average of {samples} fresh samples of attention",
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a model is attacked.

    Attributes:
        recipe: How texts are changed.
        threat: What answers a query.
        samples: Samples that are averaged over; 1 for other threats.
        seed: Decides which examples are attacked, in which order, and all noise.
        part: The part of the data that examples are taken from.
    """

    recipe: Recipe
    threat: Threat = "mean"
    samples: int = 1
    seed: int = 0
    part: str = "dev"

    def __post_init__(self) -> None:
        """Refuses values that cannot work."""
        check_choices(self)
        check_count("samples", self.samples)
        check_at_least("seed", self.seed, 0)
        if self.threat != "average" and self.samples != 1:
            raise ConfigError(f"samples={self.samples} has no use with threat={self.threat!r}.")

    @property
    def name(self) -> str:
        """The name of the attack's folder."""
        return f"{self.recipe}-{self.threat}"

    @property
    def explanation(self) -> str:
        """What answers a query, in words."""
        return THREATS[self.threat].format(samples=self.samples)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a file."""
        return asdict(self)


def threats_for(experiment: Experiment, asked: str | None = None) -> tuple[Threat, ...]:
    """The threats that make sense for a model, or those of them that were asked for.

    Args:
        experiment: Where the model comes from.
        asked: Names of threats with commas between them; by default all that apply.
    """
    found = threats_of(asked)
    if experiment.rule == "softmax":
        found = tuple(name for name in found if name == "mean")
    if not found:
        raise ConfigError(
            f"threat={asked!r} needs random attention, and rule='softmax' has none. Give mean."
        )
    return found


def threats_of(asked: str | None) -> tuple[Threat, ...]:
    """The threats that a text names with commas between them; all if there is none."""
    known: tuple[Threat, ...] = get_args(Threat)
    names = known if asked is None else [name.strip() for name in asked.split(",")]
    if strange := [name for name in names if name not in known]:
        raise ConfigError(f"threat={strange[0]!r} is not known. Give some of {list(known)}.")
    return tuple(name for name in known if name in names)
