"""Scores by type of question: the 65 types of VQA-v2, such as `is there a` or `how many`."""

import re
from collections.abc import Iterable, Mapping, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

ROWS = 15
"""The most rows of a table; the rarest types share the last one."""

UNKNOWN = "not given"
"""What a question is counted under that has no type, where others have."""

_MEASURE = re.compile(r"(accuracy|questions) \[(.+)\]")


def type_measures(
    right: Float[Tensor, "example"], types: Int[Tensor, "example"], names: Sequence[str]
) -> dict[str, float]:
    """Accuracy and number of questions of each type, the most frequent type first.

    Args:
        right: How right the answer to each question is.
        types: The type of each question, by number.
        names: What the types are called.
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
    """Rows of a table, and the types in each: one for most, all of the rarest for the last.

    Args:
        measures: All measures by name.
    """
    matches = filter(None, map(_MEASURE.fullmatch, measures))
    names = [match[2] for match in matches if match[1] == "questions"]
    if len(names) <= ROWS:
        return {name: [name] for name in names}
    rare = names[ROWS - 1 :]
    return {name: [name] for name in names[: ROWS - 1]} | {f"other ({len(rare)} types)": rare}


def type_count(measures: Mapping[str, float], types: Iterable[str]) -> int:
    """How many questions are of one of the types."""
    return round(sum(measures.get(f"questions [{name}]", 0.0) for name in types))


def type_accuracy(measures: Mapping[str, float], types: Sequence[str]) -> float | None:
    """Accuracy over the questions of several types, if there are any."""
    count = type_count(measures, types)
    right = sum(
        measures[f"accuracy [{name}]"] * measures[f"questions [{name}]"]
        for name in types
        if f"questions [{name}]" in measures
    )
    return right / count if count else None
