"""Scores against the loop of the official program, stated anew, sign by sign."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from babn_paper.tasks.vqa import soft_labels
from babn_paper.tasks.vqa2 import read_answers
from babn_paper.tasks.vqa_data import RawImages, VqaExample, VqaPart
from babn_paper.tasks.vqa_text import accuracy, normalized, soft_scores

pytestmark = pytest.mark.thorough


SIGNS = set(';/[]"{}()=+\\_-><@`,?!')
NUMBERS = {"none": "0", "one": "1", "two": "2", "ten": "10"}
CONTRACTIONS = {"dont": "don't", "whats": "what's", "hes": "he's", "somebody'd": "somebodyd"}
PERIODS = 32


def official_score(people: list[str], answer: str) -> float:
    """In its later form, which treats the machine's answer as it treats people's."""
    given_answers = [trimmed(each) for each in people]
    answer = trimmed(answer)
    if any(each != given_answers[0] for each in given_answers):
        given_answers = [official_words(official_signs(each)) for each in given_answers]
        answer = official_words(official_signs(answer))
    total = 0.0
    for left_out in range(len(given_answers)):
        others = given_answers[:left_out] + given_answers[left_out + 1 :]
        total += min(1.0, sum(each == answer for each in others) / 3)
    return total / len(given_answers)


def trimmed(text: str) -> str:
    return "".join(" " if letter in "\n\t" else letter for letter in text).strip()


def official_signs(text: str) -> str:
    triples = zip(text, text[1:], text[2:], strict=False)
    number = any(a.isdecimal() and b == "," and c.isdecimal() for a, b, c in triples)
    pairs = {*pairwise(text)}
    found = ""
    for letter in text:
        if letter not in SIGNS:
            found += letter
        elif not (number or (letter, " ") in pairs or (" ", letter) in pairs):
            found += " "
    kept, taken = "", 0
    for place, letter in enumerate(found):
        if letter == "." and not found[place + 1 : place + 2].isdecimal() and taken < PERIODS:
            taken += 1
        else:
            kept += letter
    return kept


def official_words(text: str) -> str:
    found = []
    for word in text.lower().split():
        word = NUMBERS.get(word, word)
        if word not in ("a", "an", "the"):
            found.append(CONTRACTIONS.get(word, word))
    return " ".join(found)


WORDS = st.sampled_from(
    [
        *("a", "An", "the", "one", "Two", "none", "ten", "2", "10", "1,000", "3.5", "p.m."),
        *(
            "dog",
            "Dog",
            "dont",
            "don't",
            "whats",
            "hes",
            "somebody'd",
            "t-shirt",
            "(red)",
            "?",
            ".",
        ),
    ]
)
GAPS = st.sampled_from(["", " ", " ", "  ", "-", ",", ", ", "/", " / ", "\n", "\t", ". ", "!"])
TEXTS = st.lists(st.tuples(GAPS, WORDS, GAPS), max_size=3).map(
    lambda parts: "".join("".join(part) for part in parts)
)


@st.composite
def questions(draw: st.DrawFn) -> tuple[list[str], list[str]]:
    """Ten people's answers out of a few, and a machine's that are likely to be among them."""
    few = draw(st.lists(TEXTS, min_size=1, max_size=4))
    spread = st.sampled_from([*few, *map(normalized, few), *(f" {each}\t" for each in few)])
    people = draw(st.lists(spread, min_size=10, max_size=10))
    return people, [*people, *few, draw(TEXTS)]


@settings(max_examples=200)
@given(questions())
@example((["two"] * 10, ["two", "2", "Two", " two\n"]))
@example((["two"] * 9 + [" two\t"], ["two", "2"]))  # all agree but for spaces at the edges
@example((["two"] * 9 + ["2"], ["two", "2", "the two.", "TWO"]))
@example((["a dog"] * 9 + ["dog"], ["a dog", "dog", "dog!"]))
@example((["A"] * 5 + ["the"] * 5, ["", "an"]))
@example((["." * 40] * 5 + ["a"] * 5, ["." * 40, "." * 8]))
def test_every_answer_has_the_official_score(question: tuple[list[str], list[str]]) -> None:
    people, answers = question
    for answer in answers:
        assert accuracy(answer, people) == pytest.approx(official_score(people, answer))


@settings(max_examples=100)
@given(st.lists(questions(), min_size=1, max_size=3))
def test_a_models_choices_have_the_official_scores(
    drawn: list[tuple[list[str], list[str]]],
) -> None:
    """What a test gives a model for each answer of its list, which is in plain form."""
    choices = [*dict.fromkeys(normalized(each) for _, answers in drawn for each in answers)]
    images = RawImages(torch.zeros(1, 8, 8, 3, dtype=torch.uint8), ("0",))
    examples = [VqaExample("", 0, soft_scores(people), "", "") for people, _ in drawn]
    labels = soft_labels(VqaPart("test", examples, "", "", images), choices)

    found = labels.dense(torch.arange(len(drawn)))
    expected = [[official_score(people, each) for each in choices] for people, _ in drawn]
    torch.testing.assert_close(found, torch.tensor(expected))


def test_a_list_of_answers_is_brought_to_plain_form(tmp_path: Path) -> None:
    """The official program would do it to each of them wherever people differ."""
    (tmp_path / "answer_dict.json").write_text('["two", "a dog", "2", "yes"]')
    assert read_answers(str(tmp_path)) == ["2", "dog", "yes"]
    (tmp_path / "vqa2").mkdir()  # the folder of this task among others
    (tmp_path / "vqa2" / "answer_dict.json").write_text('["no", "yes"]')
    assert read_answers(str(tmp_path)) == ["no", "yes"]
