r"""Text of visual questions: the official score of answers, and the vocabulary of questions.

The score is that of VQA (Antol et al. 2015, https://arxiv.org/abs/1505.00468). Ten annotators
answer each question. The score of an answer is the mean of $\min(1, n/3)$ over all ways to leave
one annotator out, where $n$ of the others gave the answer: 0.3, 0.6, 0.9 and 1 for one, two, three
and four or more of ten.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from babn.errors import FormatError
from babn.text import word_tokenizer
from babn_paper.tasks.task import Tokenizer

ENOUGH = 3
"""Number of annotators that make an answer fully right."""

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
    """Yields a contraction with each one of its apostrophes left out."""
    for place, letter in enumerate(word):
        if letter == "'":
            yield word[:place] + word[place + 1 :]


# The last entry is that of the official table. Its remaining entries have no effect: they have
# capitals, which no word has at this point, or map a word to itself.
CONTRACTIONS = {
    **{wrong: word for word in _CONTRACTED.split() for wrong in _misspelt(word)},
    "somebody'd": "somebodyd",
}
"""Maps contractions that lack an apostrophe to the right spelling."""

_BETWEEN_DIGITS = re.compile(r"\d,\d")
_PERIOD = re.compile(r"(?!<=\d)\.(?!\d)")
_PERIODS = 32
"""Maximum number of periods that the official program removes."""


def normalized(answer: str) -> str:
    """Normalises an answer as the official program does: punctuation, number words, articles."""
    return _plain_words(_without_punctuation(_stripped(answer)))


def _stripped(answer: str) -> str:
    return answer.replace("\n", " ").replace("\t", " ").strip()


def _without_punctuation(text: str) -> str:
    found = text
    for sign in PUNCTUATION:
        # A sign within a word becomes a space, unless the text has a number such as 1,000.
        at_edge = f"{sign} " in text or f" {sign}" in text
        gone = at_edge or _BETWEEN_DIGITS.search(text) is not None
        found = found.replace(sign, "" if gone else " ")
    return _PERIOD.sub("", found, count=_PERIODS)


def _plain_words(text: str) -> str:
    words = (NUMBERS.get(word, word) for word in text.lower().split())
    return " ".join(CONTRACTIONS.get(word, word) for word in words if word not in ARTICLES)


def human_answers(answers: Sequence[str]) -> list[str]:
    """Normalises the annotators' answers as the official program does: not if all agree."""
    stripped = [_stripped(answer) for answer in answers]
    return stripped if len(set(stripped)) == 1 else [normalized(answer) for answer in stripped]


def soft_scores(answers: Sequence[str]) -> dict[str, float]:
    """Returns the official score of every answer that an annotator gave."""
    counts = Counter(human_answers(answers))
    return {answer: _score(count, len(answers)) for answer, count in counts.items()}


def normalized_scores(answers: Sequence[str]) -> dict[str, float]:
    """Returns the scores with every answer normalised, even if all annotators agree."""
    counts = Counter(map(normalized, answers))
    return {answer: _score(count, len(answers)) for answer, count in counts.items()}


def accuracy(answer: str, answers: Sequence[str]) -> float:
    """Returns the official score of a predicted answer.

    Args:
        answer: The predicted answer.
        answers: The annotators' answers.
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
    """Returns the answers that occur at least `least` times, the most frequent first."""
    counts = Counter(best)
    kept = [answer for answer, count in counts.items() if count >= least]
    return sorted(kept, key=lambda answer: (-counts[answer], answer))


KEY = "visual_questions"
"""Setting of the tokenizer that holds `Choices`."""

_DROPPED = re.compile(r"[.,'!?\"()*#:;]")
_PARTING = re.compile(r"[-/]")


@dataclass(frozen=True)
class Choices:
    """The possible answers and the image features of a model.

    Attributes:
        answers: Possible answers in the order of the model's outputs.
        regions: Maximum number of regions of an image.
        size: Size of a region's features.
    """

    answers: Sequence[str]
    regions: int
    size: int


def question_words(question: str) -> str:
    """Normalises a question as MCAN does: lower case, without punctuation."""
    words = _PARTING.sub(" ", _DROPPED.sub("", question.lower())).split()
    return " ".join(words) or UNKNOWN


UNKNOWN = "[UNK]"
"""Replaces a question without words."""


def question_tokenizer(
    questions: Iterable[str], most: int | None = None, further: Iterable[str] = ()
) -> Tokenizer:
    """Makes a tokenizer of single words, without special tokens around a question.

    Args:
        questions: Questions that words are taken from.
        most: Maximum size of the vocabulary; the most frequent words are kept.
        further: Words that fill the vocabulary up to `most`.
    """
    texts = map(question_words, questions)
    return word_tokenizer(texts, most, further, marked=False)


def keep_choices(tokenizer: Tokenizer, choices: Choices) -> None:
    """Stores the possible answers in the tokenizer."""
    tokenizer.init_kwargs[KEY] = asdict(choices)


def choices_of(tokenizer: Tokenizer) -> Choices:
    """Returns the possible answers that are stored in a tokenizer."""
    found: dict[str, Any] | None = tokenizer.init_kwargs.get(KEY)
    if found is None:
        raise FormatError("The tokenizer has no answers. Give a run of a task with images.")
    return Choices(**found)
