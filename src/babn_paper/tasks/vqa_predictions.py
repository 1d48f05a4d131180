"""Predicted answers to visual questions.

Only the most probable answers and the right answers to each question are kept, with their logits
under every sample.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from babn.prediction.result import Prediction
from babn.tensor_files import read_tensors, write_tensors
from babn_paper.tasks.task import Outputs, Predictions, description_of, write_description
from babn_paper.tasks.vqa_data import SoftLabels
from babn_paper.tasks.vqa_metrics import measure, type_measures

FORMAT = 3
KEPT = 10
"""Number of answers kept per question: the two most probable, then those that are right, then the
next most probable."""

CONSTANT = "accuracy (one answer for all)"
"""Name of the metric: accuracy of the best constant answer."""

KIND, TENSORS = "visual questions", "answers.safetensors"

FIELDS = ("logits", "answers", "scores", "information", "kinds")
DESCRIBED = ("method", "seed", "names", "type_names", "constant")
"""Fields that are saved as tensors and in the description."""


@dataclass(frozen=True)
class VqaPredictions(Predictions):
    """The most probable and the right answers to all questions of a part.

    Attributes:
        logits: Logits of the kept answers under each sample, in descending order of probability.
        answers: Indices of the kept answers.
        scores: Scores of the kept answers.
        information: Mutual information of samples and answers, over all answers.
        kinds: Index of each question's kind.
        names: Names of the kinds.
        types: Index of each question's VQA-v2 type; `None` if there are no types.
        type_names: Names of the types.
        constant: Score of the best constant answer.
        method: Name in comparisons.
        seed: Seed of training.
    """

    logits: Float[Tensor, "sample example kept"]
    answers: Int[Tensor, "example kept"]
    scores: Float[Tensor, "example kept"]
    information: Float[Tensor, "example"]
    kinds: Int[Tensor, "example"]
    names: Sequence[str]
    types: Int[Tensor, "example"] | None = None
    type_names: Sequence[str] = ()
    constant: float = math.nan
    method: str = ""
    seed: int = 0

    @cached_property
    def prediction(self) -> Prediction:
        """The kept answers, each with an independent probability."""
        return Prediction(self.logits, "sigmoid")

    def measure(self) -> dict[str, float]:
        """Computes the official score, calibration, and detection of wrong answers."""
        kinds = {name: self.kinds == number for number, name in enumerate(self.names)}
        found = measure(self.prediction, self.scores, self.information, kinds)
        found[CONSTANT] = self.constant
        if self.types is not None:
            found |= type_measures(self.scores[:, 0].double(), self.types, self.type_names)
        return found

    def named(self, method: str, seed: int) -> "VqaPredictions":
        """Returns the predictions with another method name and seed."""
        return replace(self, method=method, seed=seed)

    def save(self, folder: Path) -> None:
        """Writes `answers.json` and `answers.safetensors`."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: getattr(self, name) for name in FIELDS}
        if self.types is not None:
            tensors["types"] = self.types
        write_tensors(folder / TENSORS, tensors)
        described = {name: getattr(self, name) for name in DESCRIBED}
        write_description(folder, FORMAT, KIND, described)

    @classmethod
    def load(cls, folder: Path) -> "VqaPredictions":
        """Reads what `save` wrote."""
        with description_of(folder, FORMAT, KIND) as found:
            tensors, _ = read_tensors(folder / TENSORS, "Test the model again.")
            own: dict[str, Any] = {name: tensors[name] for name in FIELDS}
            own["types"] = tensors.get("types")
            return cls(**own, **{name: found[name] for name in DESCRIBED})


def collected(
    outputs: Outputs, labels: SoftLabels, kinds: Sequence[str], types: Sequence[str] = ()
) -> VqaPredictions:
    """Collects the kept answers from a model's outputs, in the order of the data.

    Args:
        outputs: Indices of examples, and the outputs for them.
        labels: Scores of all answers.
        kinds: Kind of each question.
        types: VQA-v2 type of each question, if there are types.
    """
    examples = len(kinds)
    kept = min(KEPT, labels.count)
    found: dict[str, Any] = {}
    total = torch.zeros(labels.count)
    for rows, logits in outputs:
        total += labels.dense(rows.cpu()).sum(0).cpu()
        for name, value in _reduced(logits.detach(), labels, rows.cpu(), kept).items():
            axis = value.ndim - 2 if name == "logits" else 0
            if name not in found:
                shape = [*value.shape]
                shape[axis] = examples
                found[name] = torch.zeros(shape, dtype=value.dtype)
            found[name].index_copy_(axis, rows.cpu(), value.cpu())
    numbers, names = _numbered(kinds)
    of_type, type_names = _numbered(types) if types else (None, ())
    sorts: dict[str, Any] = {"kinds": numbers, "names": names}
    sorts |= {"types": of_type, "type_names": type_names}
    return VqaPredictions(**found, **sorts, constant=float(total.max()) / examples)


def _numbered(sorts: Sequence[str]) -> tuple[Tensor, list[str]]:
    """Returns the index of each question's sort, and the names of the sorts."""
    names = sorted(set(sorts))
    number = {name: place for place, name in enumerate(names)}
    return torch.tensor([number[each] for each in sorts]), names


def _reduced(outputs: Tensor, labels: SoftLabels, rows: Tensor, kept: int) -> dict[str, Tensor]:
    prediction = Prediction(outputs, "sigmoid")
    probs = prediction.probs
    scores = labels.dense(rows).to(probs.device)
    # If a right answer were dropped, its low probability would not count in the likelihood.
    urgency = torch.where(scores > 0, 1 + scores, probs)
    two = probs.topk(min(2, kept), dim=-1).indices
    best = urgency.scatter(-1, two, math.inf).topk(kept, dim=-1).indices
    order = probs.gather(-1, best).argsort(dim=-1, descending=True)
    best = best.gather(-1, order)
    chosen = best.expand(len(outputs), -1, -1)
    return {
        "logits": outputs.gather(-1, chosen).float(),
        "answers": best,
        "scores": scores.gather(-1, best),
        "information": prediction.mutual_information,
    }
