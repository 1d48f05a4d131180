"""Predictions on a test set, saved so that every metric can be computed without the model."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Real
from torch import Tensor

from babn.errors import ConfigError, FormatError
from babn.files import make_folder, read_object, replace_text
from babn.prediction.result import Prediction
from babn.tensor_files import read_tensors, write_tensors

FORMAT = 1
DESCRIPTION, TENSORS = "evaluation.json", "answers.safetensors"


@dataclass(frozen=True)
class Evaluation:
    """The predictions of one trained model on one test set.

    Attributes:
        method: Name of the method, such as the attention method and the kind of prediction.
        prediction: The predictions.
        labels: The targets: classes, or the values of a regression.
        seed: The training seed; comparisons pair methods by it.
        outside: Predictions for out-of-distribution examples.
        details: Anything that reports should mention, such as task, settings and versions.
    """

    method: str
    prediction: Prediction
    labels: Real[Tensor, "example"]
    seed: int = 0
    outside: Prediction | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Validates that there is one label for each prediction."""
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
        """An evaluation of a deterministic model, from its logits."""
        return cls(method, Prediction(logits.unsqueeze(0)), labels, **others)

    def save(self, folder: str | Path, overwrite: bool = False) -> Path:
        """Writes a folder with `evaluation.json` and `answers.safetensors`."""
        folder = Path(folder)
        if (folder / DESCRIPTION).exists() and not overwrite:
            raise FormatError(f"{folder} holds an evaluation. Pass overwrite=True to replace it.")
        make_folder(folder)
        tensors = {"sample_logits": self.prediction.sample_logits, "labels": self.labels}
        if self.outside is not None:
            tensors["outside"] = self.outside.sample_logits
        write_tensors(folder / TENSORS, tensors)
        description = {
            "format": FORMAT,
            "method": self.method,
            "seed": self.seed,
            "activation": self.prediction.activation,
            "residual": self.prediction.residual,
            "details": dict(self.details),
        }
        replace_text(folder / DESCRIPTION, json.dumps(description, indent=2) + "\n")
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> "Evaluation":
        """Reads a folder that `save` wrote."""
        folder = Path(folder)
        found = read_object(folder / DESCRIPTION, "Save it again.")
        if found.get("format") != FORMAT:
            raise FormatError(
                f"{folder / DESCRIPTION} has format {found.get('format')!r}; this version of "
                f"babn reads format {FORMAT}. Save the evaluation again."
            )
        tensors, _ = read_tensors(folder / TENSORS, "Save it again.")
        try:
            activation = found["activation"]
            residual = float(found.get("residual", 0.0))
            prediction = Prediction(tensors["sample_logits"], activation, residual)
            outside = Prediction(tensors["outside"], activation) if "outside" in tensors else None
            about = found["method"], prediction, tensors["labels"], found["seed"]
            return cls(*about, outside, found["details"])
        except (KeyError, AttributeError, TypeError, ValueError) as error:
            raise FormatError(f"{folder} is damaged: {error!r}. Save it again.") from error


def collect(
    runs: Sequence[Evaluation | str | Path] | str | Path, part: str | None = None
) -> list[Evaluation]:
    """Evaluations that are given or found in folders, of one part of the data.

    Args:
        runs: Evaluations, folders that `Evaluation.save` wrote, or a folder that contains such
            folders at any depth.
        part: Part of the data; needed only if there are several.
    """
    found: list[Evaluation] = []
    for run in [runs] if isinstance(runs, str | Path) else runs:
        if isinstance(run, Evaluation):
            found.append(run)
        else:
            inside = sorted(path.parent for path in Path(run).rglob(DESCRIPTION))
            found += [Evaluation.load(folder) for folder in inside or [Path(run)]]
    parts = list(dict.fromkeys(str(each.details.get("part", "")) for each in found))
    if part is None and len(parts) < 2:
        return found
    if part not in parts:
        raise ConfigError(
            f"part={part!r} is invalid: the runs have predictions for {parts}. Choose one of "
            "them with part=, or with --part on the command line."
        )
    return [each for each in found if each.details.get("part") == part]


def ensemble(members: Sequence[Prediction]) -> Prediction:
    """Deep ensemble: the members' samples as one prediction.

    The method of Lakshminarayanan et al. (2017, <https://arxiv.org/abs/1612.01474>). Members have
    equal weight, so all need equally many samples: one for a deterministic model, as
    `Prediction(logits.unsqueeze(0))`. Mutual information is then the uncertainty due to the
    members' disagreement.
    """
    if not members:
        raise ConfigError("members=[] is invalid. Give the prediction of at least one model.")
    kinds = {(tuple(member.sample_logits.shape), member.activation) for member in members}
    if len(kinds) > 1:
        raise ConfigError(
            f"members have samples of different shapes or activations: {sorted(kinds)}. Give "
            "predictions of one kind for the same inputs, with equally many samples."
        )
    samples = torch.cat([member.sample_logits for member in members])
    return Prediction(samples, members[0].activation)
