"""The official rules, against worked examples and a plain implementation."""

import math
import re
import string
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from babn_paper.tasks.span_predictions import OfficialScores, best_threshold, normalized

TEXTS = st.lists(
    st.sampled_from(["the", "An", "bell", "Bell!", "U.S.", "tower", "1,840", "-", "café"]),
    max_size=5,
).map(" ".join)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Bell.", "bell"),
        ("a U.S. ship", "us ship"),
        ("theatre an", "theatre"),
        ("well-known", "wellknown"),
        ("«The» end", "« » end"),
        ("the", ""),
        ("\tBig\nRuth ", "big ruth"),
    ],
)
def test_normalized(text: str, expected: str) -> None:
    assert normalized(text) == expected


@pytest.mark.parametrize("unanswerable", [False, True])
@pytest.mark.parametrize(
    ("text", "golds", "exact", "f1"),
    [
        ("The Bell", ["bell"], 1, 1),
        ("big bell", ["bell"], 0, 2 / 3),
        ("bell", ["tower", "the big bell tower"], 0, 1 / 2),
        ("bell bell", ["bell tower"], 0, 1 / 2),
        ("ship", ["bell"], 0, 0),
        ("", ["bell"], 0, 0),
    ],
)
def test_worked_examples(
    text: str, golds: list[str], exact: float, f1: float, unanswerable: bool
) -> None:
    official = OfficialScores(unanswerable)
    assert official.exact(text, golds) == exact
    assert official.f1(text, golds) == pytest.approx(f1)


def test_no_answer() -> None:
    official = OfficialScores(True)
    assert (official.exact("", []), official.f1("", [])) == (1, 1)
    assert (official.exact("bell", []), official.f1("bell", [])) == (0, 0)
    assert (official.exact("bell", ["the", "bell"]), official.f1("", ["the"])) == (1, 1)


def test_nothing_left_of_an_answer_has_no_words_in_1_1() -> None:
    assert (OfficialScores(False).exact("a", ["the"]), OfficialScores(False).f1("a", ["the"])) == (
        1,
        0,
    )


def plain_normal(text: str) -> str:
    kept = "".join(ch for ch in text.lower() if ch not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", kept).split())


def plain_f1(text: str, gold: str, version: str) -> float:
    ours, right = plain_normal(text).split(), plain_normal(gold).split()
    if version == "2.0" and (len(ours) == 0 or len(right) == 0):
        return float(ours == right)
    same = sum((Counter(ours) & Counter(right)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(ours), same / len(right)
    return 2 * precision * recall / (precision + recall)


@given(text=TEXTS, golds=st.lists(TEXTS, min_size=1, max_size=3))
def test_against_a_plain_implementation(text: str, golds: list[str]) -> None:
    assert OfficialScores(False).exact(text, golds) == max(
        float(plain_normal(text) == plain_normal(gold)) for gold in golds
    )
    assert OfficialScores(False).f1(text, golds) == pytest.approx(
        max(plain_f1(text, gold, "1.1") for gold in golds)
    )
    kept = [gold for gold in golds if plain_normal(gold)] or [""]
    assert OfficialScores(True).exact(text, golds) == max(
        float(plain_normal(text) == plain_normal(gold)) for gold in kept
    )
    assert OfficialScores(True).f1(text, golds) == pytest.approx(
        max(plain_f1(text, gold, "2.0") for gold in kept)
    )


@given(
    rows=st.lists(
        st.tuples(st.booleans(), st.sampled_from([0, 0.4, 1]), st.floats(-9, 9, width=16)),
        min_size=1,
        max_size=8,
        unique_by=lambda row: row[2],
    )
)
def test_threshold_against_all_thresholds(rows: list[tuple[bool, float, float]]) -> None:
    answerable, scores, odds = (list(column) for column in zip(*rows, strict=True))

    def at(threshold: float) -> float:
        total = 0.0
        for has_answer, score, odd in rows:
            silent = odd > threshold
            total += float(not has_answer) if silent else score * has_answer
        return total / len(rows)

    best, threshold = best_threshold(
        torch.tensor(scores).double(), torch.tensor(odds).double(), torch.tensor(answerable)
    )
    assert best == pytest.approx(max(at(each) for each in [-math.inf, *odds]))
    assert at(threshold) == pytest.approx(best)


def test_thresholds_of_equal_odds_go_by_the_official_order() -> None:
    best, threshold = best_threshold(
        torch.tensor([1.0, 1.0]), torch.tensor([0.5, 0.5]), torch.tensor([True, False])
    )
    assert (best, threshold) == (1.0, 0.5)
