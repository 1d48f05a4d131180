r"""Metrics of answers to visual questions, which may be partly right.

In every metric, an answer with the score $s$ counts as right with weight $s$ and as wrong with
weight $1 - s$; with scores of 0 and 1 these are the usual metrics. Confidence is the probability of
the most probable answer.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from babn.prediction.result import Prediction
from babn_paper.tasks.scores import confidence_ece, error_auroc, with_temperatures

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
