"""What a model answered in a test, kept so that every number can be computed without the model."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxtyping import Float, Real
from torch import Tensor

from babn.errors import ConfigError, FormatError
from babn.files import parse_json, replace_text
from babn.prediction.predict import Prediction
from babn.tensor_files import read_tensors, write_tensors

FORMAT = 1
DESCRIPTION, TENSORS = "evaluation.json", "answers.safetensors"


@dataclass(frozen=True)
class Evaluation:
    """The answers of one trained model to one test set.

    Attributes:
        method: What is compared, such as the attention rule and how it was asked.
        prediction: The answers.
        labels: The right ones: classes, or the values of a regression.
        seed: The seed of training, by which methods are paired.
        outside: Answers to questions from elsewhere, which the model should be less sure of.
        details: Anything that tables or reports should mention: task, settings, versions.
    """

    method: str
    prediction: Prediction
    labels: Real[Tensor, "example"]
    seed: int = 0
    outside: Prediction | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuses answers and labels that do not belong together."""
        shape = tuple(self.prediction.sample_logits.shape)
        if len(shape) != 3 or shape[1] != len(self.labels):
            raise ConfigError(
                f"prediction has samples of shape {shape} for {len(self.labels)} labels of "
                f"{self.method!r}. Give shape (samples, {len(self.labels)}, classes)."
            )

    @classmethod
    def of_logits(
        cls, method: str, logits: Float[Tensor, "example label"], labels: Tensor, **others: Any
    ) -> "Evaluation":
        """One answer to each question, as a deterministic model gives it."""
        return cls(method, Prediction(logits.unsqueeze(0)), labels, **others)

    def save(self, folder: str | Path, overwrite: bool = False) -> Path:
        """Writes a folder with `evaluation.json` and `answers.safetensors`."""
        folder = Path(folder)
        if (folder / DESCRIPTION).exists() and not overwrite:
            raise FormatError(f"{folder} holds an evaluation. Pass overwrite=True to replace it.")
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {"sample_logits": self.prediction.sample_logits, "labels": self.labels}
        if self.outside is not None:
            tensors["outside"] = self.outside.sample_logits
        write_tensors(folder / TENSORS, tensors)
        description = {
            "format": FORMAT,
            "method": self.method,
            "seed": self.seed,
            "activation": self.prediction.activation,
            "details": dict(self.details),
        }
        text = json.dumps(description, indent=2) + "\n"
        replace_text(folder / DESCRIPTION, text)
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> "Evaluation":
        """Reads what `save` wrote."""
        folder = Path(folder)
        try:
            found = parse_json((folder / DESCRIPTION).read_text())
            if found.get("format") != FORMAT:
                raise FormatError(
                    f"{folder / DESCRIPTION} has format {found.get('format')!r}; this version of "
                    f"babn reads format {FORMAT}. Save the evaluation again."
                )
            tensors, _ = read_tensors(folder / TENSORS, "Save it again.")
            activation = found["activation"]
            outside = tensors.get("outside")
            return cls(
                found["method"],
                Prediction(tensors["sample_logits"], activation),
                tensors["labels"],
                found["seed"],
                None if outside is None else Prediction(outside, activation),
                found["details"],
            )
        except FileNotFoundError as error:
            raise FormatError(f"{error.filename} does not exist. Check the folder.") from error
        except (KeyError, AttributeError, TypeError, ValueError) as error:
            if isinstance(error, FormatError | ConfigError):
                raise
            raise FormatError(f"{folder} is damaged: {error!r}. Save it again.") from error
