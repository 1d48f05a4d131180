"""What a model answered to questions about images, kept so that numbers can be computed again.

Of thousands of answers only the most probable ones of each question and the right ones are kept,
with their logits under every sample.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from babn.errors import FormatError
from babn.files import parse_json, replace_text
from babn.prediction.predict import Prediction
from babn.tensor_files import read_tensors, write_tensors
from babn_paper.tasks.lookups import SoftLabels
from babn_paper.tasks.task import Answers, Asked
from babn_paper.tasks.vqa_measures import measure
from babn_paper.tasks.vqa_types import type_measures

FORMAT = 3
KEPT = 10
"""Answers to each question that are kept: the two most probable, those that are right, and the next
most probable."""

CONSTANT = "accuracy (one answer for all)"
"""What a model that looks at nothing can come to, as a measure."""

DESCRIPTION, TENSORS = "answers.json", "answers.safetensors"


@dataclass(frozen=True)
class VqaAnswers(Answers):
    """The most probable and the right answers to all questions of a part.

    Attributes:
        logits: Of each kept answer under each sample; the most probable answer first.
        answers: Numbers of the kept answers.
        scores: How right each of them is.
        information: Mutual information of samples and answers, over all answers.
        kinds: What sort of question each is, by number.
        names: What the kinds are called.
        types: The question type of VQA-v2, by number; `None` where there are no types.
        type_names: What the types are called.
        constant: Score of the one answer that does best if given to all questions.
        method: What comparisons call it.
        seed: The seed of training.
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
        """The kept answers, each with a probability of its own."""
        return Prediction(self.logits, "sigmoid")

    def measure(self) -> dict[str, float]:
        """Scores by the official rule, and how well the model knows when it is right."""
        kinds = {name: self.kinds == number for number, name in enumerate(self.names)}
        found = measure(self.prediction, self.scores, self.information, kinds)
        found[CONSTANT] = self.constant
        if self.types is not None:
            found |= type_measures(self.scores[:, 0].double(), self.types, self.type_names)
        return found

    def named(self, method: str, seed: int) -> "VqaAnswers":
        """The answers with another method and seed."""
        return replace(self, method=method, seed=seed)

    def save(self, folder: Path) -> None:
        """Writes `answers.json` and `answers.safetensors`."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: getattr(self, name) for name in FIELDS}
        if self.types is not None:
            tensors["types"] = self.types
        write_tensors(folder / TENSORS, tensors)
        description = {
            "format": FORMAT,
            "kind": "visual questions",
            "method": self.method,
            "seed": self.seed,
            "names": list(self.names),
            "type_names": list(self.type_names),
            "constant": self.constant,
        }
        text = json.dumps(description, indent=2) + "\n"
        replace_text(folder / DESCRIPTION, text)

    @classmethod
    def load(cls, folder: Path) -> "VqaAnswers":
        """Reads what `save` wrote."""
        try:
            found = parse_json((folder / DESCRIPTION).read_text())
            if (found["format"], found["kind"]) != (FORMAT, "visual questions"):
                raise FormatError(
                    f"{folder / DESCRIPTION} has format {found['format']!r} of {found['kind']!r}; "
                    f"this version of babn reads {FORMAT} of 'visual questions'. Test the model "
                    "again."
                )
            tensors, _ = read_tensors(folder / TENSORS, "Test the model again.")
            own: dict[str, Any] = {name: tensors[name] for name in FIELDS}
            own["types"] = tensors.get("types")
            return cls(**own, **{name: found[name] for name in DESCRIBED})
        except FileNotFoundError as error:
            raise FormatError(f"{error.filename} does not exist. Check the folder.") from error
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, FormatError):
                raise
            raise FormatError(f"{folder} is damaged: {error!r}. Test the model again.") from error


FIELDS = ("logits", "answers", "scores", "information", "kinds")
DESCRIBED = ("names", "type_names", "constant", "method", "seed")


def collected(
    asked: Asked, labels: SoftLabels, kinds: Sequence[str], types: Sequence[str] = ()
) -> VqaAnswers:
    """What is kept of a model's outputs, in the order of the data.

    Args:
        asked: Places of examples, and the outputs for them.
        labels: How right each answer is.
        kinds: What sort of question each example is.
        types: The question type of each, where there are types.
    """
    examples = len(kinds)
    kept = min(KEPT, labels.count)
    found: dict[str, Any] = {}
    total = torch.zeros(labels.count)
    for rows, outputs in asked:
        total += labels.dense(rows.cpu()).sum(0).cpu()
        for name, value in _reduced(outputs.detach(), labels, rows.cpu(), kept).items():
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
    return VqaAnswers(**found, **sorts, constant=float(total.max()) / examples)


def _numbered(sorts: Sequence[str]) -> tuple[Tensor, list[str]]:
    """The sort of each question by number, and what the numbers mean."""
    names = sorted(set(sorts))
    number = {name: place for place, name in enumerate(names)}
    return torch.tensor([number[each] for each in sorts]), names


def _reduced(outputs: Tensor, labels: SoftLabels, rows: Tensor, kept: int) -> dict[str, Tensor]:
    prediction = Prediction(outputs, "sigmoid")
    probs = prediction.probs
    scores = labels.dense(rows).to(probs.device)
    # Without the right answers, one that was ruled out altogether would cost no likelihood.
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
