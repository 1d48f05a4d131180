r"""The most probable spans of windows.

In a window $w$, a span from token $i$ to $j$ has the probability

$$p_w(i, j) = \frac1S \sum_s p_s(i \mid w) \, q_s(j \mid w),$$

the mean over samples $s$ of softmaxes over the window's context and its first token, which stands
for no answer.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from babn.errors import NonFiniteError
from babn_paper.tasks.span_answer import TEMPERATURES
from babn_paper.tasks.span_places import Offsets, locate

BEST = 20
"""Spans that are kept of each window and of each question."""

LONGEST = 30
"""The most tokens of an answer."""

Logits = Float[Tensor, "sample window token 2"]


@dataclass
class Found:
    """What is kept of windows.

    Attributes:
        spans: Characters of the best spans.
        scores: Their log-probabilities; `-inf` where there are fewer spans.
        sample_spans: Characters of the best span under each sample.
        sample_scores: Its log-probability under that sample.
        sample_null: That of no answer.
        null: Log-probability of no answer, at each temperature.
        gold: That of the best right span; `-inf` if the window holds none.
    """

    spans: Int[Tensor, "window best 2"]
    scores: Float[Tensor, "window best"]
    sample_spans: Int[Tensor, "window sample 2"]
    sample_scores: Float[Tensor, "window sample"]
    sample_null: Float[Tensor, "window sample"]
    null: Float[Tensor, "window temperature"]
    gold: Float[Tensor, "window temperature"]


def find(
    logits: Logits, starts: Offsets, ends: Offsets, golds: Int[Tensor, "window span 2"]
) -> Found:
    """The best spans of windows, and how probable the right ones are.

    Args:
        logits: Of each token as the first and as the last.
        starts: Where tokens begin.
        ends: Where tokens end.
        golds: Characters of the right answers; -1 for those that are missing.
    """
    context = ends > starts
    valid = context.clone()
    valid[:, 0] = True
    logits = logits.float().where(valid[..., None], -torch.inf)
    logs = logits.log_softmax(2)
    if logs.isnan().any():
        raise NonFiniteError("The model's outputs are not finite. Train it at a lower rate.")
    mixture, sample_scores, sample_best = _mixed(logs, context)
    scores, best = mixture.topk(min(BEST, mixture.shape[1]))
    right = locate(starts, ends, golds)
    tempered = [_tempered(logits, right, temperature) for temperature in TEMPERATURES]
    null, gold = torch.stack(tempered, 1).unbind(-1)
    return Found(
        _characters(best, starts, ends),
        scores,
        _characters(sample_best, starts, ends),
        sample_scores,
        logs[:, :, 0].sum(-1).T,
        null,
        gold,
    )


def _mixed(
    logs: Logits, context: Bool[Tensor, "window token"]
) -> tuple[
    Float[Tensor, "window span"], Float[Tensor, "window sample"], Int[Tensor, "window sample"]
]:
    """Log-probabilities of all spans, and under each sample that of the best one and its place."""
    mixture, tops = None, []
    # One sample at a time, so that memory is that for one.
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
    """Log-probabilities of no answer and of the best right span, at a temperature."""
    logs = (logits / temperature).log_softmax(2)
    null = logs[:, :, 0].sum(-1)
    places = tokens.clamp(min=0).expand(len(logits), *tokens.shape)
    golds = logs.gather(2, places).sum(-1)
    inside = tokens[..., 0] >= 0
    both = [null[..., None], golds.where(inside, -torch.inf)]
    best = [each.logsumexp(0).amax(-1) - math.log(len(logits)) for each in both]
    return torch.stack(best, -1)
