"""Answers from logits, against all spans tried one by one."""

import math
import random
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from squad_cases import ask
from torch import Tensor

from babn.errors import ConfigError, NonFiniteError
from babn_paper.tasks.encoded import Encoded, Ragged
from babn_paper.tasks.span_decoding import BEST, LONGEST, decode
from babn_paper.tasks.span_predictions import TEMPERATURES, SpanPrediction
from babn_paper.tasks.squad_files import Question

QUESTION = 3
"""Tokens before the context: the first one, one of a question, one between."""


@dataclass
class Case:
    """Questions, windows over them, and logits."""

    questions: list[Question]
    encoded: Encoded
    owners: list[int]
    tokens: list[list[tuple[int, int]]]
    logits: list[Tensor]

    def outputs(self, order: list[int], size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of windows, each padded with noise to a length of its own."""
        for start in range(0, len(order), size):
            rows = order[start : start + size]
            longest = max(self.logits[row].shape[1] for row in rows) + start % 3
            padded = torch.randn(len(self.logits[0]), len(rows), longest, 2) * 9
            for i, row in enumerate(rows):
                padded[:, i, : self.logits[row].shape[1]] = self.logits[row]
            yield torch.tensor(rows), padded

    def answers(self, unanswerable: bool = True, size: int = 2) -> list[SpanPrediction]:
        order = list(range(len(self.owners)))
        random.Random(0).shuffle(order)
        outputs = self.outputs(order, size)
        return list(decode(self.questions, self.encoded, outputs, unanswerable))


def make(seed: int, samples: int, words: int, window: int, questions: int = 2) -> Case:
    """Random logits for windows of a few words, which share one word with their neighbours."""
    draw = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    posed, owners, tokens = [], [], []
    for number in range(questions):
        length = draw.randint(1, words)
        parts = [draw.choice(["ab", "cde", "f"]) + str(i) for i in range(length)]
        first = draw.randrange(length)
        golds = [
            " ".join(parts[first : first + draw.randint(1, 4)]) for _ in range(draw.randint(0, 2))
        ]
        posed.append(ask(" ".join(parts), *golds, name=str(number)))
        places = [sum(map(len, parts[:i])) + i for i in range(length)]
        spans = [(place, place + len(part)) for place, part in zip(places, parts, strict=True)]
        for start in range(0, max(length - 1, 1), window - 1):
            owners.append(number)
            tokens.append([(-1, -1)] * QUESTION + spans[start : start + window] + [(-1, -1)])
    logits = [torch.randn(samples, len(row), 2, generator=generator) * 3 for row in tokens]
    offsets = [[[pair[end] for pair in row] for row in tokens] for end in (0, 1)]
    side: dict[str, Any] = {
        "context_starts": Ragged.of(offsets[0], -1),
        "context_ends": Ragged.of(offsets[1], -1),
        "question": torch.tensor(owners),
    }
    return Case(
        posed, Encoded({"input_ids": Ragged.of(offsets[0])}, {}, side), owners, tokens, logits
    )


def softmaxes(row: Tensor, tokens: list[tuple[int, int]], temperature: float) -> list[list[float]]:
    """Probabilities of each token as the first and as the last one, by plain sums."""
    valid = [i == 0 or end > start for i, (start, end) in enumerate(tokens)]
    found = []
    for end in (0, 1):
        powers = [
            math.exp(value / temperature) if fine else 0.0
            for value, fine in zip(row[:, end].tolist(), valid, strict=True)
        ]
        found.append([power / sum(powers) for power in powers])
    return found


def every_span(case: Case, window: int, temperature: float = 1.0) -> list[dict[Any, float]]:
    """For each sample, the probability of each span of characters; None for no answer."""
    tokens = case.tokens[window]
    context = [i for i, (start, end) in enumerate(tokens) if end > start]
    found = []
    for row in case.logits[window].double():
        first, last = softmaxes(row, tokens, temperature)
        spans: dict[Any, float] = {None: first[0] * last[0]}
        for i in context:
            for j in (j for j in context if j >= i):
                spans[tokens[i][0], tokens[j][1], j - i + 1] = first[i] * last[j]
        found.append(spans)
    return found


def sizes(case: Case, window: int) -> list[float]:
    """For each sample, what takes probabilities to sums of logits: the logarithm of both sums."""
    valid = [i for i, (start, end) in enumerate(case.tokens[window]) if i == 0 or end > start]
    return [
        sum(math.log(sum(math.exp(row[i, end]) for i in valid)) for end in (0, 1))
        for row in case.logits[window].double()
    ]


def scored(spans: dict[Any, float], size: float) -> dict[Any, float]:
    return {key: probability * math.exp(size) for key, probability in spans.items()}


def mean(samples: list[dict[Any, float]]) -> dict[Any, float]:
    return {key: sum(each[key] for each in samples) / len(samples) for key in samples[0]}


def plain_best(question: Question, windows: list[dict[Any, float]]) -> list[tuple[str, float]]:
    texts: dict[str, float] = {}
    for spans in windows:
        for key, probability in spans.items():
            if key is not None and key[2] <= LONGEST:
                text = question.context[key[0] : key[1]]
                texts[text] = max(texts.get(text, 0.0), probability)
    return sorted(texts.items(), key=lambda item: -item[1])[:BEST]


# Seed, samples, words and window.
CASES = st.tuples(
    st.integers(0, 10**6),
    st.sampled_from([1, 3]),
    st.sampled_from([3, 12, 45]),
    st.sampled_from([5, 40]),
)


@pytest.mark.thorough
@settings(deadline=None, max_examples=25)
@given(drawn=CASES, unanswerable=st.booleans())
def test_against_all_spans(drawn: tuple[int, int, int, int], unanswerable: bool) -> None:
    case = make(*drawn)
    for i, answer in enumerate(case.answers(unanswerable)):
        own = [w for w, owner in enumerate(case.owners) if owner == i]
        windows = [scored(mean(every_span(case, w)), statistics.fmean(sizes(case, w))) for w in own]
        expected = plain_best(case.questions[i], windows)
        assert [text for text, _ in answer.best] == [text for text, _ in expected]
        for (_, score), (_, probability) in zip(answer.best, expected, strict=True):
            assert score == pytest.approx(math.log(probability), abs=2e-3)
        null = min(each[None] for each in windows)
        assert answer.null == pytest.approx(math.log(null), abs=2e-3)


@pytest.mark.thorough
@settings(deadline=None, max_examples=15)
@given(drawn=CASES, unanswerable=st.booleans())
def test_answers_of_single_samples(drawn: tuple[int, int, int, int], unanswerable: bool) -> None:
    case = make(*drawn)
    for i, answer in enumerate(case.answers(unanswerable)):
        own = [w for w, owner in enumerate(case.owners) if owner == i]
        windows = [
            [scored(*each) for each in zip(every_span(case, w), sizes(case, w), strict=True)]
            for w in own
        ]
        expected = []
        for sample in zip(*windows, strict=True):
            ((text, probability), *_) = plain_best(case.questions[i], list(sample))
            null = min(spans[None] for spans in sample)
            expected.append("" if unanswerable and null > probability else text)
        assert answer.samples == (tuple(expected) if len(expected) > 1 else ())


@settings(deadline=None, max_examples=15)
@given(drawn=CASES)
def test_probability_of_the_right_span(drawn: tuple[int, int, int, int]) -> None:
    case = make(*drawn)
    for i, (question, answer) in enumerate(zip(case.questions, case.answers(), strict=True)):
        windows = [w for w, owner in enumerate(case.owners) if owner == i]
        golds = [(each.start, each.start + len(each.text)) for each in question.answers]
        for place in (0, TEMPERATURES.index(1), len(TEMPERATURES) - 1):
            spans = [mean(every_span(case, w, TEMPERATURES[place])) for w in windows]
            right = [p for each in spans for key, p in each.items() if key and key[:2] in golds]
            expected = max(right, default=None) if golds else min(each[None] for each in spans)
            if expected is None:
                assert answer.gold_scores == ()
            else:
                assert answer.gold_scores[place] == pytest.approx(math.log(expected), abs=2e-3)


def test_one_sample_compares_sums_of_logits_across_windows() -> None:
    """As the official script does, whatever the other logits of a window are."""
    case = make(11, samples=1, words=45, window=8, questions=1)
    (answer,) = case.answers()
    sums = [
        (float(row[i, 0] + row[j, 1]), case.questions[0].context[tokens[i][0] : tokens[j][1]])
        for row, tokens in zip((each[0] for each in case.logits), case.tokens, strict=True)
        for i in range(QUESTION, len(tokens) - 1)
        for j in range(i, len(tokens) - 1)
    ]
    score, text = max(sums)
    assert len(case.owners) > 1
    assert answer.best[0] == (text, pytest.approx(score, abs=1e-3))
    assert answer.null == pytest.approx(min(float(x[0, 0].sum()) for x in case.logits), abs=1e-3)


def test_batches_do_not_matter() -> None:
    case = make(5, samples=2, words=45, window=8, questions=4)
    assert case.answers(size=1) == case.answers(size=3) == case.answers(size=100)


def test_answers_are_no_longer_than_allowed() -> None:
    case = next(c for c in (make(s, 1, 45, 80, 1) for s in range(99)) if len(c.tokens[0]) > 40)
    case.logits[0].zero_()
    case.logits[0][0, QUESTION, 0] = case.logits[0][0, -2, 1] = 30.0
    assert max(len(text.split()) for text, _ in case.answers()[0].best) <= LONGEST


def test_contexts_without_a_token_have_no_answer() -> None:
    side: dict[str, Any] = {
        "context_starts": Ragged.of([[-1, -1]], -1),
        "context_ends": Ragged.of([[-1, -1]], -1),
        "question": torch.tensor([0]),
    }
    encoded = Encoded({"input_ids": Ragged.of([[1, 2]])}, {}, side)
    outputs = iter([(torch.tensor([0]), torch.zeros(2, 1, 2, 2))])
    (answer,) = decode([ask("\x00")], encoded, outputs, True)
    assert (answer.best, answer.null, answer.samples) == ((), 0.0, ("", ""))


def test_outputs_must_fit() -> None:
    case = make(3, samples=1, words=12, window=5)
    with pytest.raises(ConfigError, match="outputs has 1 rows for"):
        decode(case.questions, case.encoded, case.outputs([0], 1), True)
    with pytest.raises(ConfigError, match="training=False"):
        decode(case.questions, Encoded(case.encoded.ragged, {}), case.outputs([0], 1), True)
    case.logits[0][0, 0, 0] = math.nan
    with pytest.raises(NonFiniteError, match="not finite"):
        case.answers()
