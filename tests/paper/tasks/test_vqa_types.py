"""Scores by type of question, against sums written out."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from babn_paper.tasks.vqa_predictions import (
    ROWS,
    is_of_type,
    type_accuracy,
    type_count,
    type_measures,
    type_rows,
)

QUESTIONS = st.lists(
    st.tuples(st.integers(0, 29), st.sampled_from([0.0, 0.3, 0.6, 0.9, 1.0])), min_size=1
)


def measures_of(questions: list[tuple[int, float]]) -> dict[str, float]:
    types, scores = zip(*questions, strict=True)
    names = [f"how ({number})" for number in range(30)]
    return type_measures(torch.tensor(scores).double(), torch.tensor(types), names)


@given(QUESTIONS)
def test_rows_are_sorted_and_together_hold_every_question(
    questions: list[tuple[int, float]],
) -> None:
    measures = measures_of(questions)
    assert all(map(is_of_type, measures))
    rows = type_rows(measures)
    counts = [type_count(measures, types) for types in rows.values()]

    assert len(rows) <= ROWS and sum(counts) == len(questions)
    single = [count for count, types in zip(counts, rows.values(), strict=True) if len(types) == 1]
    assert single == sorted(single, reverse=True)
    for types in rows.values():
        own = [score for number, score in questions if f"how ({number})" in types]
        assert type_accuracy(measures, types) == pytest.approx(sum(own) / len(own))


def test_only_measures_of_types_are_taken_for_such() -> None:
    for name in ("accuracy", "accuracy (number)", "accuracy (one answer for all)", "ECE-10"):
        assert not is_of_type(name)
    assert type_rows({"accuracy": 0.5}) == {} and type_accuracy({}, ["is it"]) is None
