"""The official score, against its definition written out."""

import hashlib
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from babn_paper.tasks.vqa_text import (
    CONTRACTIONS,
    accuracy,
    frequent,
    human_answers,
    normalized,
    normalized_scores,
    soft_scores,
)


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
        # The official table has no entry for these.
        ("noone", "noone"),
        ("twenty", "twenty"),
        ("eleven", "eleven"),
        ("lets go", "lets go"),
        # These are taken by words that are no contractions.
        ("the hed of a shes", "he'd of shes"),
        ("Im", "im"),
        ("Ive", "ive"),
        # One entry takes an apostrophe away.
        ("somebody'd", "somebodyd"),
        ("somebodyd", "somebodyd"),
        ("'ows'at", "'ow's'at"),
        ("twas", "'twas"),
        ("yall'd've", "y'all'd've"),
        # Apostrophes, colons, percent and other signs stay.
        ("dog's", "dog's"),
        ("10:30", "10:30"),
        ("50%", "50%"),
        ("$5 & #1", "$5 & #1"),
        # A sign goes if it stands beside a space anywhere, and else makes room.
        ("a-b - c-d", "ab cd"),
        ("a-b-c", "b c"),
        ("right? left?", "right left"),
        ("(left)", "left"),
        ("5-6", "5 6"),
        ("1,000-2,000", "10002000"),
        ("red,white", "red white"),
        ("red, white,blue", "red whiteblue"),
        # A period stays before a digit only, whatever is before it.
        ("5.", "5"),
        (".5", ".5"),
        ("v.2", "v.2"),
        ("p.m.", "pm"),
        ("." * 40, "." * 8),
        # Number words become digits before articles go; a digit is no article.
        ("one of the two", "1 of 2"),
        ("A", ""),
        ("Ten-Four", "10 4"),
    ],
)
def test_answers_are_compared_in_a_plain_form(answer: str, expected: str) -> None:
    assert normalized(answer) == expected


def test_contractions_are_the_official_ones() -> None:
    """Their number and a digest of all of them, taken from the official program."""
    lines = "\n".join(f"{wrong} {right}" for wrong, right in sorted(CONTRACTIONS.items()))
    assert len(CONTRACTIONS) == 114
    assert hashlib.sha256(lines.encode()).hexdigest().startswith("f2c800b1132e7930")
    assert {wrong.replace("'", "") for wrong in CONTRACTIONS} == {
        right.replace("'", "") for right in CONTRACTIONS.values()
    }


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


def test_training_takes_answers_in_plain_form_even_where_all_agree() -> None:
    assert normalized_scores(["two"] * 10) == {"2": 1.0}
    assert soft_scores(["two"] * 10) == {"two": 1.0}
    assert normalized_scores(["a dog"] * 2 + ["cat"] * 8) == pytest.approx({"dog": 0.6, "cat": 1.0})


def test_frequent_answers_come_first() -> None:
    assert frequent(["b", "a", "b", "c", "a", "d"], 2) == ["a", "b"]
