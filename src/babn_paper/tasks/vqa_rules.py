r"""The official score of VQA answers (Antol et al. 2015; Goyal et al. 2017).

Ten people answered each question. An answer's score is the mean, over all ways to leave one of
them out, of $\min(1, n/3)$, where $n$ of the others gave it: 0.3, 0.6, 0.9 and 1 for one, two,
three and four or more of ten.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

ENOUGH = 3
"""So many people make an answer right."""

PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'

ARTICLES = {"a", "an", "the"}

_NUMBER_WORDS = "zero one two three four five six seven eight nine ten"
NUMBERS = {"none": "0"} | {word: str(n) for n, word in enumerate(_NUMBER_WORDS.split())}

_CONTRACTED = """
ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've hasn't
haven't he'd he'd've he's how'd how'll how's isn't it'd it'd've it'll ma'am mightn't mightn't've
might've mustn't must've needn't not've o'clock oughtn't 'ow's'at shan't she'd've should've
shouldn't shouldn't've somebody'd've somebody'll somebody's someone'd someone'd've someone'll
someone's something'd something'd've something'll that's there'd there'd've there're there's they'd
they'd've they'll they're they've 'twas wasn't we'd've we've weren't what'll what're what's what've
when's where'd where's where've who'd who'd've who'll who's who've why'll why're why's won't
would've wouldn't wouldn't've y'all y'all'll y'all'd've you'd you'd've you'll you're you've
"""


def _misspelt(word: str) -> Iterator[str]:
    """A contraction with one of its apostrophes left out, in every way."""
    for place, letter in enumerate(word):
        if letter == "'":
            yield word[:place] + word[place + 1 :]


# The last entry is the official table's. What else that has cannot make a difference: entries with
# capitals, which no word has by then, and words that stand for themselves.
CONTRACTIONS = {
    **{wrong: word for word in _CONTRACTED.split() for wrong in _misspelt(word)},
    "somebody'd": "somebodyd",
}
"""Contractions without an apostrophe, and with it."""

_BETWEEN_DIGITS = re.compile(r"\d,\d")
_PERIOD = re.compile(r"(?!<=\d)\.(?!\d)")
_PERIODS = 32
"""The most periods that the official program takes away."""


def normalized(answer: str) -> str:
    """An answer as the official program compares it: punctuation, number words, articles."""
    return _plain_words(_without_punctuation(_stripped(answer)))


def _stripped(answer: str) -> str:
    return answer.replace("\n", " ").replace("\t", " ").strip()


def _without_punctuation(text: str) -> str:
    found = text
    for sign in PUNCTUATION:
        # A sign within a word parts it, unless the text has a number such as 1,000.
        at_edge = f"{sign} " in text or f" {sign}" in text
        gone = at_edge or _BETWEEN_DIGITS.search(text) is not None
        found = found.replace(sign, "" if gone else " ")
    return _PERIOD.sub("", found, count=_PERIODS)


def _plain_words(text: str) -> str:
    words = (NUMBERS.get(word, word) for word in text.lower().split())
    return " ".join(CONTRACTIONS.get(word, word) for word in words if word not in ARTICLES)


def human_answers(answers: Sequence[str]) -> list[str]:
    """People's answers as the official program compares them: as they are if all agree."""
    stripped = [_stripped(answer) for answer in answers]
    return stripped if len(set(stripped)) == 1 else [normalized(answer) for answer in stripped]


def soft_scores(answers: Sequence[str]) -> dict[str, float]:
    """The official score of every answer that somebody gave."""
    counts = Counter(human_answers(answers))
    return {answer: _score(count, len(answers)) for answer, count in counts.items()}


def plain_scores(answers: Sequence[str]) -> dict[str, float]:
    """The same with every answer in plain form, even where all people agree: for training."""
    counts = Counter(map(normalized, answers))
    return {answer: _score(count, len(answers)) for answer, count in counts.items()}


def accuracy(answer: str, answers: Sequence[str]) -> float:
    """The official score of a machine's answer.

    Args:
        answer: The machine's.
        answers: What people answered.
    """
    agreed = len({_stripped(each) for each in answers}) == 1
    return soft_scores(answers).get(_stripped(answer) if agreed else normalized(answer), 0.0)


def _score(count: int, people: int) -> float:
    if people == 1:
        return 1.0
    others = (people - count) * min(1.0, count / ENOUGH)
    own = count * min(1.0, (count - 1) / ENOUGH)
    return (others + own) / people


def frequent(best: Iterable[str], least: int) -> list[str]:
    """Answers that are the best one of at least so many questions, the most frequent first."""
    counts = Counter(best)
    kept = [answer for answer, count in counts.items() if count >= least]
    return sorted(kept, key=lambda answer: (-counts[answer], answer))
