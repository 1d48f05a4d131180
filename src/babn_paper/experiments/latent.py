"""Settings of variational attention, which is part of the translation model."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from babn.errors import ConfigError
from babn.validation import check_at_least, check_choices, check_count

LATENT_METHODS = ("va-enum", "va-sample")
"""Variational attention with enumerated or with sampled alignments."""


@dataclass(frozen=True, kw_only=True)
class LatentConfig:
    """Settings of variational attention ([Deng et al. 2018](https://arxiv.org/abs/1807.03756)).

    Attributes:
        method: `"va-enum"` or `"va-sample"`.
        kl_weight: KL weight at the end of annealing; 1 gives the ELBO.
        estimator: Gradient estimator of `"va-sample"`: `"reinforce"` or `"gumbel"`.
        baseline: Whether `"reinforce"` subtracts the log-probability under soft attention.
        train_samples: Alignments that `"va-sample"` samples for each target position.
        gumbel_temperature: Temperature of `"gumbel"`.
        prediction: Whether predicted probabilities are averaged over all alignments (`"enum"`) or
            computed at the mean alignment (`"soft"`).
    """

    method: Literal["va-enum", "va-sample"]
    kl_weight: float = 1.0
    estimator: Literal["reinforce", "gumbel"] = "reinforce"
    baseline: bool = True
    train_samples: int = 1
    gumbel_temperature: float = 0.5
    prediction: Literal["enum", "soft"] = "enum"

    def __post_init__(self) -> None:
        """Validates the fields."""
        check_choices(self)
        check_at_least("kl_weight", self.kl_weight, 0.0)
        check_at_least("gumbel_temperature", self.gumbel_temperature, 0.0, strictly=True)
        check_count("train_samples", self.train_samples)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "LatentConfig":
        """Builds the settings from plain values, such as those of a file."""
        if unknown := sorted(set(values) - {field.name for field in fields(cls)}):
            raise ConfigError(f"{cls.__name__} has no field {', '.join(unknown)}.")
        return cls(**values)

    def sizes(self) -> dict[str, Any]:
        """The corresponding fields of the translation model's configuration."""
        values = asdict(self)
        return {"attention": values.pop("method"), **values}
