"""Answers to questions, from the most probable spans of their windows.

As in the official script of BERT, the windows of a question are put together by taking the best
spans of all of them, and the smallest probability of no answer.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields

import torch
from jaxtyping import Int
from torch import Tensor

from babn.errors import ConfigError
from babn_paper.tasks.encoded import Encoded
from babn_paper.tasks.ragged import Ragged
from babn_paper.tasks.span_answer import TEMPERATURES, SpanAnswer
from babn_paper.tasks.span_places import answer_spans
from babn_paper.tasks.span_search import BEST, Found, find
from babn_paper.tasks.squad_files import Question
from babn_paper.tasks.task import Asked

SIDE = ("context_starts", "context_ends", "question")


def decode(
    questions: Sequence[Question], encoded: Encoded, asked: Asked, unanswerable: bool
) -> Iterator[SpanAnswer]:
    """The answers to questions, from outputs for windows in any order.

    Args:
        questions: All questions of the part.
        encoded: Their windows, encoded for testing.
        asked: Places of windows and outputs for them; of each batch only `Found` is kept.
        unanswerable: Whether no answer is one.
    """
    starts, ends, owner = (encoded.side.get(name) for name in SIDE)
    if not (isinstance(starts, Ragged) and isinstance(ends, Ragged) and isinstance(owner, Tensor)):
        raise ConfigError("encoded has no context_starts. Encode with training=False.")
    golds, owner = answer_spans(questions), owner.cpu()
    rows, batches = [], []
    for places, logits in asked:
        places = places.to(starts.offsets.device)
        offsets = [each.pad(places, logits.shape[2]).to(logits.device) for each in (starts, ends)]
        right = golds[owner[places.cpu()]].to(logits.device)
        batches.append(find(logits.detach(), offsets[0], offsets[1], right))
        rows.append(places.cpu())
    found = _in_order(rows, batches, len(encoded))
    return _answers(questions, found, owner, unanswerable)


def _in_order(rows: list[Tensor], batches: list[Found], windows: int) -> Found:
    """All windows in the order of their places."""
    places = torch.cat(rows) if rows else torch.empty(0, dtype=torch.long)
    if not torch.equal(places.sort().values, torch.arange(windows)):
        raise ConfigError(
            f"asked has {len(places)} outputs for {windows} windows. Give each one's once."
        )
    order = places.argsort()
    columns = ([getattr(each, field.name).cpu() for each in batches] for field in fields(Found))
    return Found(*(_filled(column)[order] for column in columns))


def _filled(column: list[Tensor]) -> Tensor:
    """Batches joined; short windows have fewer spans than others."""
    widest = max(each.shape[1] for each in column)
    padded = []
    for each in column:
        blank = -torch.inf if each.is_floating_point() else -1
        missing = each.new_full((len(each), widest - each.shape[1], *each.shape[2:]), blank)
        padded.append(torch.cat([each, missing], 1))
    return torch.cat(padded)


def _answers(
    questions: Sequence[Question], found: Found, owner: Int[Tensor, "window"], unanswerable: bool
) -> Iterator[SpanAnswer]:
    order = owner.argsort(stable=True)
    groups = order.split(owner.bincount(minlength=len(questions)).tolist())
    for question, windows in zip(questions, groups, strict=True):
        chosen = Found(*(getattr(found, field.name)[windows] for field in fields(Found)))
        yield _answer(question, chosen, unanswerable)


def _answer(question: Question, found: Found, unanswerable: bool) -> SpanAnswer:
    null = found.null.amin(0)
    gold = found.gold.amax(0) if question.answers else null
    spans = zip(found.scores.flatten().tolist(), found.spans.flatten(0, 1).tolist(), strict=True)
    return SpanAnswer(
        question.id,
        tuple(answer.text for answer in question.answers),
        tuple(_texts(question.context, spans))[:BEST],
        _rounded(null[TEMPERATURES.index(1)].item()),
        tuple(_sampled(question.context, found, unanswerable)),
        tuple(map(_rounded, gold.tolist())) if gold.isfinite().all() else (),
    )


def _texts(context: str, spans: Iterable[tuple[float, list[int]]]) -> Iterator[tuple[str, float]]:
    """Different texts with the scores of their best spans, the best first."""
    seen: set[str] = set()
    for score, (start, end) in sorted(spans, key=lambda span: -span[0]):
        text = context[start:end].strip()
        if score > -math.inf and text and text not in seen:
            seen.add(text)
            yield text, _rounded(score)


def _sampled(context: str, found: Found, unanswerable: bool) -> Iterator[str]:
    """The most probable answer of each sample, if there are several; empty for no answer."""
    scores, windows = found.sample_scores.max(0)
    silent = (found.sample_null.amin(0) > scores).tolist()
    spans = found.sample_spans[windows, torch.arange(len(windows))].tolist()
    for (start, end), null in zip(spans, silent, strict=True) if len(silent) > 1 else ():
        yield "" if unanswerable and null else context[start:end].strip()


def _rounded(value: float) -> float:
    """Short in files."""
    return round(value, 4)
