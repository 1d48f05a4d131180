r"""Predicted answers to visual questions, and their metrics.

In every metric, an answer with the score $s$ counts as right with weight $s$ and as wrong with
weight $1 - s$; with scores of 0 and 1 these are the usual metrics. Confidence is the probability of
the most probable answer.

Only the most probable answers and the right answers to each question are kept, with their logits
under every sample.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from babn.prediction.result import Prediction
from babn.tensor_files import read_tensors, write_tensors
from babn_paper.tasks.scores import confidence_ece, error_auroc, with_temperatures
from babn_paper.tasks.task import Outputs, Predictions, description_of, write_description
from babn_paper.tasks.vqa_data import SoftLabels

ALPHA = 0.05
"""P-value below which an answer is certain, as in the paper."""

FLOOR = 1e-7


def measure(
    prediction: Prediction,
    scores: Float[Tensor, "example answer"],
    information: Float[Tensor, "example"],
    kinds: Mapping[str, Bool[Tensor, "example"]],
) -> dict[str, float]:
    """Computes all metrics.

    Args:
        prediction: Some answers to each question, the most probable one first.
        scores: Scores of these answers.
        information: Mutual information of samples and answers.
        kinds: Mask of the questions of each kind.
    """
    right, confidence = scores[:, 0].double(), prediction.probs[:, 0].double()
    found = {"accuracy": float(right.mean())}
    if len(kinds) > 1:
        found |= {f"accuracy ({name})": float(right[own].mean()) for name, own in kinds.items()}
    found |= {
        "mean confidence": float(confidence.mean()),
        "NLL": nll(prediction, scores),
        "ECE-10": confidence_ece(confidence, right),
        "error AUROC (confidence)": error_auroc(1 - confidence, right),
    }
    if len(prediction.sample_logits) > 1:
        found["mean mutual information"] = float(information.double().mean())
        found["error AUROC (mutual information)"] = error_auroc(information.double(), right)
        found["PAvPU (p<0.05)"] = pavpu(prediction.p_value, right)
    tempered = cross_tempered(prediction, scores)
    found["NLL + TS"] = nll(tempered, scores)
    found["ECE-10 + TS"] = confidence_ece(tempered.probs[:, 0].double(), right)
    return found


def nll(prediction: Prediction, scores: Float[Tensor, "example answer"]) -> float:
    """Mean negative log-likelihood of the kept answers, in nats."""
    return float(nlls(prediction, scores).mean())


def nlls(
    prediction: Prediction, scores: Float[Tensor, "example answer"]
) -> Float[Tensor, "example"]:
    """Negative log-likelihood of each example's kept answers, in nats."""
    p = prediction.probs.double().clamp(FLOOR, 1 - FLOOR)
    y = scores.double()
    return -(y * p.log() + (1 - y) * (1 - p).log()).sum(-1)


def pavpu(p_value: Float[Tensor, "example"], right: Float[Tensor, "example"]) -> float:
    """Share of answers that are right and certain, or wrong and uncertain."""
    certain = (p_value < ALPHA).double()
    return float((right * certain + (1 - right) * (1 - certain)).mean())


def cross_tempered(prediction: Prediction, scores: Float[Tensor, "example answer"]) -> Prediction:
    """Scales each tenth of the logits by the temperature that fits the other nine."""
    return with_temperatures(prediction, lambda t: nlls(prediction.tempered(t), scores))


ROWS = 15
"""Maximum number of rows of a table; the rarest types share the last one."""

UNKNOWN = "not given"
"""Type of questions without one in a data set with question types."""

_MEASURE = re.compile(r"(accuracy|questions) \[(.+)\]")


def type_measures(
    right: Float[Tensor, "example"], types: Int[Tensor, "example"], names: Sequence[str]
) -> dict[str, float]:
    """Computes accuracy and number of questions of each VQA-v2 type, such as `how many`.

    Args:
        right: Score of the answer to each question.
        types: Index of each question's type.
        names: Names of the types.
    """
    counts = torch.bincount(types, minlength=len(names))
    sums = torch.zeros(len(names), dtype=right.dtype).index_add(0, types, right)
    found = {}
    for number in counts.argsort(descending=True, stable=True).tolist():
        if counts[number]:
            found[f"accuracy [{names[number]}]"] = float(sums[number] / counts[number])
            found[f"questions [{names[number]}]"] = float(counts[number])
    return found


def is_of_type(measure: str) -> bool:
    """Whether a measure is one of `type_measures`."""
    return _MEASURE.fullmatch(measure) is not None


def type_rows(measures: Mapping[str, float]) -> dict[str, list[str]]:
    """Returns the rows of a table with the types in each; the rarest types share the last row.

    Args:
        measures: All metrics by name.
    """
    matches = filter(None, map(_MEASURE.fullmatch, measures))
    names = [match[2] for match in matches if match[1] == "questions"]
    if len(names) <= ROWS:
        return {name: [name] for name in names}
    rare = names[ROWS - 1 :]
    return {name: [name] for name in names[: ROWS - 1]} | {f"other ({len(rare)} types)": rare}


def type_count(measures: Mapping[str, float], types: Iterable[str]) -> int:
    """Returns the number of questions of some types."""
    return round(sum(measures.get(f"questions [{name}]", 0.0) for name in types))


def type_accuracy(measures: Mapping[str, float], types: Sequence[str]) -> float | None:
    """Returns the accuracy over the questions of some types; `None` if there are none."""
    count = type_count(measures, types)
    right = sum(
        measures[f"accuracy [{name}]"] * measures[f"questions [{name}]"]
        for name in types
        if f"questions [{name}]" in measures
    )
    return right / count if count else None


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
