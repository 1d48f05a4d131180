"""Tables of abstention, prediction sets and out-of-distribution detection."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from babn import metrics
from babn.evaluation.comparison import Estimate, grouped
from babn.evaluation.decisions import fit_abstention, fit_conformal
from babn.evaluation.predictions import Evaluation
from babn.evaluation.tables import Table

RISK, COVERAGE = 0.05, 0.9
"""Largest risk of answered examples, and coverage of prediction sets."""


def decision_table(evaluations: Sequence[Evaluation]) -> Table:
    """Abstention and prediction sets of each method.

    Thresholds are fitted to one half of the examples and evaluated on the other, both ways, since
    their guarantees hold for other data than they were fitted to.
    """
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(evaluations[0].labels), generator=generator)
    caption = (
        f"Abstention with a risk of at most {RISK:.0%}, and prediction sets with a coverage of "
        f"{COVERAGE:.0%}; fitted to one half of the examples and evaluated on the other, both ways."
    )
    return _table(evaluations, lambda each: _decisions(each, order), caption)


def _decisions(evaluation: Evaluation, order: Tensor) -> dict[str, float]:
    first, second = order.tensor_split([len(order) // 2])
    found = [_fitted(evaluation, first, second), _fitted(evaluation, second, first)]
    # The risk is not defined if no example of a half is answered.
    means = torch.tensor([[*each.values()] for each in found], dtype=torch.float64).nanmean(0)
    return dict(zip(found[0], means.tolist(), strict=True))


def _fitted(evaluation: Evaluation, fit: Tensor, test: Tensor) -> dict[str, float]:
    prediction, labels = evaluation.prediction.to("cpu"), evaluation.labels.cpu()
    abstention = fit_abstention(prediction[fit], labels[fit], risk=RISK)
    answered = abstention.evaluate(prediction[test], labels[test])
    found = {"answered": answered["coverage"], "risk of answers": answered["risk"]}
    for method in ("split", "adaptive"):
        sets = fit_conformal(prediction[fit], labels[fit], coverage=COVERAGE, method=method)
        measured = sets.evaluate(prediction[test], labels[test])
        found |= {f"{method} sets: {name}": value for name, value in measured.items()}
    return found


def outside_table(evaluations: Sequence[Evaluation]) -> Table | None:
    """AUROC and FPR95 of out-of-distribution examples; `None` if there are none."""
    known = [each for each in evaluations if each.outside is not None]
    if not known:
        return None
    caption = (
        "Detection of out-of-distribution examples by scores: AUROC (higher is better), and the "
        "false positive rate at a true positive rate of 95 % (lower is better)."
    )
    return _table(known, _outside, caption)


def _outside(evaluation: Evaluation) -> dict[str, float]:
    inside, outside = evaluation.prediction, evaluation.outside
    assert outside is not None
    pairs = {"entropy": (inside.entropy, outside.entropy)}
    if len(inside.sample_logits) > 1:
        pairs["mutual information"] = inside.mutual_information, outside.mutual_information
    found = {}
    for name, (low, high) in pairs.items():
        found[f"AUROC, {name}"] = metrics.auroc(low, high)
        found[f"FPR95, {name}"] = metrics.fpr95(low, high)
    return found


def _table(
    evaluations: Sequence[Evaluation],
    measure: Callable[[Evaluation], dict[str, float]],
    caption: str,
) -> Table:
    """Means and standard deviations over seeds, by method."""
    found = {
        method: [measure(each) for each in group.values()]
        for method, group in grouped(evaluations).items()
    }
    names = list(dict.fromkeys(name for each in found.values() for name in each[0]))
    rows = [
        [method, *(_cell([each.get(name, math.nan) for each in values]) for name in names)]
        for method, values in found.items()
    ]
    return Table(["method", *names], rows, caption)


def _cell(values: Sequence[float]) -> str:
    known = tuple(value for value in values if not math.isnan(value))
    return str(Estimate(known, 0.0, 0.0)) if known else "-"
