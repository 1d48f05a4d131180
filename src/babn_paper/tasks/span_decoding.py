r"""Decodes the most probable answers to questions from the model's outputs for windows.

In a window $w$, a span from token $i$ to $j$ has the probability

$$p_w(i, j) = \frac1S \sum_s p_s(i \mid w) \, q_s(j \mid w),$$

the mean over samples $s$ of softmaxes over the window's context and its first token, which
represents no answer. As in the official script of BERT, the answer to a question is the span with
the largest score in all of its windows, and no answer has its smallest score over the windows. The
script compares sums of logits, which are not normalised within a window. The score of a span is

$$\log p_w(i, j) + \frac1S \sum_s \log Z_s(w), \qquad
Z_s(w) = \sum_i e^{a_{si}} \sum_j e^{b_{sj}},$$

with the logits $a$ of first and $b$ of last tokens: for one sample it is $a_i + b_j$.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from babn.errors import ConfigError, NonFiniteError
from babn_paper.tasks.encoded import Encoded, Ragged
from babn_paper.tasks.span_predictions import TEMPERATURES, SpanPrediction
from babn_paper.tasks.squad_files import Question
from babn_paper.tasks.squad_windows import Offsets, answer_spans, locate
from babn_paper.tasks.task import Outputs

BEST = 20
"""Number of spans that are kept per window and per question."""

LONGEST = 30
"""Maximum number of tokens of an answer."""

Logits = Float[Tensor, "sample window token 2"]


@dataclass
class Found:
    """Spans of windows, with scores that can be compared across windows.

    Attributes:
        spans: Characters of the best spans.
        scores: Scores of the best spans; `-inf` where there are fewer spans.
        sample_spans: Characters of the best span under each sample.
        sample_scores: Score of the best span under each sample.
        sample_null: Score of no answer under each sample.
        silence: Score of no answer.
        null: Log-probability of no answer at each temperature.
        gold: Log-probability of the best right span at each temperature; `-inf` if the window
            contains none.
    """

    spans: Int[Tensor, "window best 2"]
    scores: Float[Tensor, "window best"]
    sample_spans: Int[Tensor, "window sample 2"]
    sample_scores: Float[Tensor, "window sample"]
    sample_null: Float[Tensor, "window sample"]
    silence: Float[Tensor, "window 1"]
    null: Float[Tensor, "window temperature"]
    gold: Float[Tensor, "window temperature"]


def find(
    logits: Logits, starts: Offsets, ends: Offsets, golds: Int[Tensor, "window span 2"]
) -> Found:
    """Finds the best spans of windows, and the probabilities of the right ones.

    Args:
        logits: Logits of each token as the first and as the last token of the answer.
        starts: Start of each token.
        ends: End of each token.
        golds: Characters of the right answers, padded with -1.
    """
    context = ends > starts
    valid = context.clone()
    valid[:, 0] = True
    logits = logits.float().where(valid[..., None], -torch.inf)
    logs = logits.log_softmax(2)
    if logs.isnan().any():
        raise NonFiniteError("The model's outputs are not finite. Train with a lower rate.")
    mixture, sample_scores, sample_best = _mixed(logs, context)
    sizes = logits.logsumexp(2).sum(-1).T
    size = sizes.mean(1, keepdim=True)
    scores, best = mixture.topk(min(BEST, mixture.shape[1]))
    right = locate(starts, ends, golds)
    tempered = [_tempered(logits, right, temperature) for temperature in TEMPERATURES]
    null, gold = torch.stack(tempered, 1).unbind(-1)
    return Found(
        _characters(best, starts, ends),
        scores + size,
        _characters(sample_best, starts, ends),
        sample_scores + sizes,
        logs[:, :, 0].sum(-1).T + sizes,
        null[:, [TEMPERATURES.index(1)]] + size,
        null,
        gold,
    )


def _mixed(
    logs: Logits, context: Bool[Tensor, "window token"]
) -> tuple[
    Float[Tensor, "window span"], Float[Tensor, "window sample"], Int[Tensor, "window sample"]
]:
    """Returns log-probabilities of all spans, and the best span and its score by sample."""
    mixture, tops = None, []
    # One sample at a time, to limit memory.
    for sample in logs.where(context[..., None], -torch.inf):
        last = F.pad(sample[..., 1], (0, LONGEST - 1), value=-torch.inf)
        spans = (sample[..., 0, None] + last.unfold(-1, LONGEST, 1)).flatten(1)
        tops.append(spans.max(1))
        mixture = spans if mixture is None else torch.logaddexp(mixture, spans)
    assert mixture is not None
    scores, places = (torch.stack(each, 1) for each in zip(*tops, strict=True))
    return mixture - math.log(len(logs)), scores, places


def _characters(
    spans: Int[Tensor, "window span"], starts: Offsets, ends: Offsets
) -> Int[Tensor, "window span 2"]:
    first = spans // LONGEST
    last = (first + spans % LONGEST).clamp(max=starts.shape[1] - 1)
    return torch.stack([starts.gather(1, first), ends.gather(1, last)], -1)


def _tempered(
    logits: Logits, tokens: Int[Tensor, "window span 2"], temperature: float
) -> Float[Tensor, "window 2"]:
    """Returns log-probabilities of no answer and of the best right span at a temperature."""
    logs = (logits / temperature).log_softmax(2)
    null = logs[:, :, 0].sum(-1)
    places = tokens.clamp(min=0).expand(len(logits), *tokens.shape)
    golds = logs.gather(2, places).sum(-1)
    inside = tokens[..., 0] >= 0
    both = [null[..., None], golds.where(inside, -torch.inf)]
    best = [each.logsumexp(0).amax(-1) - math.log(len(logits)) for each in both]
    return torch.stack(best, -1)


SIDE = ("context_starts", "context_ends", "question")


def decode(
    questions: Sequence[Question], encoded: Encoded, outputs: Outputs, unanswerable: bool
) -> Iterator[SpanPrediction]:
    """Yields the predicted answers to questions, from outputs for windows in any order.

    Args:
        questions: All questions of the part.
        encoded: Their windows, encoded for evaluation.
        outputs: Indices of windows, and the outputs for them.
        unanswerable: Whether questions may have no answer.
    """
    starts, ends, owner = (encoded.side.get(name) for name in SIDE)
    if not (isinstance(starts, Ragged) and isinstance(ends, Ragged) and isinstance(owner, Tensor)):
        raise ConfigError("encoded has no context_starts. Encode with training=False.")
    golds, owner = answer_spans(questions), owner.cpu()
    rows, batches = [], []
    for places, logits in outputs:
        places = places.to(starts.offsets.device)
        offsets = [each.pad(places, logits.shape[2]).to(logits.device) for each in (starts, ends)]
        right = golds[owner[places.cpu()]].to(logits.device)
        batches.append(find(logits.detach(), offsets[0], offsets[1], right))
        rows.append(places.cpu())
    found = _in_order(rows, batches, len(encoded))
    return _predictions(questions, found, owner, unanswerable)


def _in_order(rows: list[Tensor], batches: list[Found], windows: int) -> Found:
    """Concatenates batches in the order of the windows."""
    places = torch.cat(rows) if rows else torch.empty(0, dtype=torch.long)
    if not torch.equal(places.sort().values, torch.arange(windows)):
        raise ConfigError(
            f"outputs has {len(places)} rows for {windows} windows. Give one row for each window."
        )
    order = places.argsort()
    columns = ([getattr(each, field.name).cpu() for each in batches] for field in fields(Found))
    return Found(*(_filled(column)[order] for column in columns))


def _filled(column: list[Tensor]) -> Tensor:
    """Concatenates batches, padding those with fewer spans."""
    widest = max(each.shape[1] for each in column)
    padded = []
    for each in column:
        blank = -torch.inf if each.is_floating_point() else -1
        missing = each.new_full((len(each), widest - each.shape[1], *each.shape[2:]), blank)
        padded.append(torch.cat([each, missing], 1))
    return torch.cat(padded)


def _predictions(
    questions: Sequence[Question], found: Found, owner: Int[Tensor, "window"], unanswerable: bool
) -> Iterator[SpanPrediction]:
    order = owner.argsort(stable=True)
    groups = order.split(owner.bincount(minlength=len(questions)).tolist())
    for question, windows in zip(questions, groups, strict=True):
        chosen = Found(*(getattr(found, field.name)[windows] for field in fields(Found)))
        yield _prediction(question, chosen, unanswerable)


def _prediction(question: Question, found: Found, unanswerable: bool) -> SpanPrediction:
    null = found.null.amin(0)
    gold = found.gold.amax(0) if question.answers else null
    spans = zip(found.scores.flatten().tolist(), found.spans.flatten(0, 1).tolist(), strict=True)
    return SpanPrediction(
        question.id,
        tuple(answer.text for answer in question.answers),
        tuple(_texts(question.context, spans))[:BEST],
        _rounded(found.silence.min().item()),
        tuple(_sampled(question.context, found, unanswerable)),
        tuple(map(_rounded, gold.tolist())) if gold.isfinite().all() else (),
    )


def _texts(context: str, spans: Iterable[tuple[float, list[int]]]) -> Iterator[tuple[str, float]]:
    """Yields distinct texts with the scores of their best spans, in descending order."""
    seen: set[str] = set()
    for score, (start, end) in sorted(spans, key=lambda span: -span[0]):
        text = context[start:end].strip()
        if score > -math.inf and text and text not in seen:
            seen.add(text)
            yield text, _rounded(score)


def _sampled(context: str, found: Found, unanswerable: bool) -> Iterator[str]:
    """Yields the most probable answer of each of several samples; empty for no answer."""
    scores, windows = found.sample_scores.max(0)
    silent = (found.sample_null.amin(0) > scores).tolist()
    spans = found.sample_spans[windows, torch.arange(len(windows))].tolist()
    for (start, end), null in zip(spans, silent, strict=True) if len(silent) > 1 else ():
        yield "" if unanswerable and null else context[start:end].strip()


def _rounded(value: float) -> float:
    """Rounds a score, to keep files small."""
    return round(value, 4)
