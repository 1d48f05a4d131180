"""Scores of the tokens of a language model, and measures of them."""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from babn import metrics
from babn_paper.method_comparison.example_scores import Scores

AT_ONCE = 8
"""Windows of text in one prediction."""

SEGMENT = 16
"""Consecutive tokens whose scores are averaged to detect text of another kind."""

TEMPERATURES = tuple(2 ** (i / 16) for i in range(-8, 9))

Draw = Callable[[Tensor], Tensor]
"""Samples of next-token logits (sample, window, token, word) for windows of tokens."""

TokenScores = Mapping[str, Tensor]
"""By name of the score, for each window and token but the first, on the CPU."""


def token_scores(draw: Draw, cut: Tensor, temperature: float = 1.0) -> TokenScores:
    """Scores of the tokens of windows.

    Returns:
        Negative log likelihood of the token, entropy and mutual information of its prediction, the
        probability of the most probable token, and whether that is the right one.
    """
    found: dict[str, list[Tensor]] = {}
    for ids in cut.split(AT_ONCE):
        log_probs = (draw(ids)[:, :, :-1].float() / temperature).log_softmax(-1)
        probs = log_probs.exp()
        mean = probs.mean(0)
        entropy = -torch.xlogy(mean, mean).sum(-1)
        confidence, chosen = mean.max(-1)
        values = {
            "nll": _nll(log_probs, ids),
            "entropy": entropy,
            "mi": (entropy + (probs * log_probs).sum(-1).mean(0)).clamp(min=0),
            "confidence": confidence,
            "correct": chosen == ids[:, 1:],
        }
        for name, value in values.items():
            found.setdefault(name, []).append(value.double().cpu())
    return {name: torch.cat(values) for name, values in found.items()}


def _nll(log_probs: Tensor, ids: Tensor) -> Tensor:
    """Negative log likelihood of tokens under the mean of the samples."""
    target = ids[None, :, 1:, None].expand(len(log_probs), -1, -1, 1)
    each = log_probs.gather(-1, target).squeeze(-1)
    return math.log(len(each)) - each.logsumexp(0)


def best_temperature(draw: Draw, cut: Tensor) -> float:
    """The temperature with the lowest negative log likelihood."""
    totals = torch.zeros(len(TEMPERATURES), dtype=torch.float64)
    for ids in cut.split(AT_ONCE):
        logits = draw(ids)[:, :, :-1].float()
        nlls = [_nll((logits / each).log_softmax(-1), ids).sum() for each in TEMPERATURES]
        totals += torch.stack(nlls).double().cpu()
    return TEMPERATURES[int(totals.argmin())]


def as_examples(scores: TokenScores) -> Scores:
    """The tokens as examples of a classifier."""
    columns = (scores[name].flatten() for name in ("correct", "nll", "confidence", "entropy"))
    return Scores(*columns, outside=scores["nll"].new_zeros(0))


def detection(inside: TokenScores, outside: TokenScores, samples: bool) -> dict[str, float]:
    """How well mean scores of segments detect text of another kind."""
    found = {}
    names = {"NLL": "nll", "entropy": "entropy"} | ({"MI": "mi"} if samples else {})
    for label, name in names.items():
        own, others = segments(inside[name]), segments(outside[name])
        found[f"AUROC by {label}"] = metrics.auroc(own, others)
        found[f"FPR95 by {label}"] = metrics.fpr95(own, others)
    return found


def segments(scores: Tensor) -> Tensor:
    """Mean scores of segments of windows."""
    usable = scores.shape[1] // SEGMENT * SEGMENT
    return scores[:, :usable].unflatten(1, (-1, SEGMENT)).mean(-1).flatten()
