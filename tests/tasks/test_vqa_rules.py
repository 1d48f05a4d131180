"""The official score, against its definition written out."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from babn.tasks.vqa_rules import accuracy, frequent, human_answers, normalized, soft_scores


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("The red car.", "red car"),
        ("two dogs", "2 dogs"),
        ("none", "0"),
        ("dont know", "don't know"),
        ("couldnt've", "couldn't've"),
        ("couldn'tve", "couldn't've"),
        ("it's 1,000", "it's 1000"),
        ("black/white", "black white"),
        ("black / white", "black  white".replace("  ", " ")),
        ("3.5", "3.5"),
        ("yes, a dog!", "yes dog"),
        ("t-shirt", "t shirt"),
        ("\tA  Cat\n", "cat"),
        ("whats up?", "what's up"),
        ("", ""),
    ],
)
def test_answers_are_compared_in_a_plain_form(answer: str, expected: str) -> None:
    assert normalized(answer) == expected


ANSWERS = st.lists(st.sampled_from(["a dog", "dog", "cat", "2", "two"]), min_size=10, max_size=10)


@given(ANSWERS, st.sampled_from(["dog", "cat", "2", "bird"]))
def test_the_score_is_the_mean_over_nine_of_ten_people(people: list[str], answer: str) -> None:
    plain = human_answers(people)
    subsets = list(combinations(plain, 9))
    expected = sum(min(1.0, subset.count(answer) / 3) for subset in subsets) / len(subsets)
    # Where all agree, nothing is made plain, neither theirs nor the machine's.
    assert accuracy(answer, people) == pytest.approx(expected)


def test_known_scores() -> None:
    people = ["cat"] * 4 + ["dog"] * 3 + ["bird"] * 2 + ["cow"]
    found = soft_scores(people)
    assert found == pytest.approx({"cat": 1.0, "dog": 0.9, "bird": 0.6, "cow": 0.3})
    assert soft_scores(["lamp"]) == {"lamp": 1.0}
    assert accuracy("The Cat!", people) == 1.0
    assert accuracy("A cat", ["a cat"] * 10) == 0.0  # the official program compares as it is
    assert accuracy("a cat", ["a cat"] * 10) == 1.0


def test_frequent_answers_come_first() -> None:
    assert frequent(["b", "a", "b", "c", "a", "d"], 2) == ["a", "b"]
