"""HTML report of evaluations, with figures and tables as files."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from babn import metrics, plots
from babn.evaluation.comparison import Comparison, compare, grouped, mean_and_std
from babn.evaluation.decisions import fit_abstention, fit_conformal
from babn.evaluation.html_pages import Markup, check_target, document, element, join
from babn.evaluation.predictions import Evaluation, collect
from babn.evaluation.tables import Table
from babn.files import make_folder

AUTHOR, PAGE = "babn report", "report.html"

RISK, COVERAGE = 0.05, 0.9
"""Largest risk of answered examples, and coverage of prediction sets."""


def report(
    runs: Sequence[Evaluation | str | Path] | str | Path,
    out: str | Path = "babn-report",
    *,
    title: str = "Uncertainty report",
    baseline: str | None = None,
    bins: int = 10,
    part: str | None = None,
    force: bool = False,
) -> Path:
    """Writes a folder with an HTML page, its figures, and tables as Markdown, LaTeX and CSV.

    Args:
        runs: Evaluations, folders that `Evaluation.save` wrote, or a folder that contains such
            folders at any depth.
        out: The folder to write.
        title: Heading of the page.
        baseline: The method that the others are compared with; by default the first.
        bins: Bins of reliability diagrams and calibration error.
        part: Part of the data whose predictions are compared, for runs with several parts.
        force: Whether to write into a folder that holds other files.

    Returns:
        The path of the page.
    """
    folder = Path(out)
    check_target(folder, PAGE, AUTHOR, force)
    evaluations = collect(runs, part)
    comparison = compare(evaluations, baseline, bins=bins)
    make_folder(folder)
    tables = {"numbers": comparison.table(), "differences": comparison.difference_table()}
    figures = {}
    if evaluations[0].prediction.activation == "softmax":
        tables["decisions"] = decision_table(evaluations)
        figures = _figures(evaluations, bins)
    if (outside := outside_table(evaluations)) is not None:
        tables["outside"] = outside
    for name, table in tables.items():
        (folder / f"{name}.md").write_text(table.markdown(), encoding="utf-8")
        (folder / f"{name}.tex").write_text(table.latex(), encoding="utf-8")
        (folder / f"{name}.csv").write_text(table.csv(), encoding="utf-8")
    for name, figure in figures.items():
        plots.save(figure, folder / f"{name}.pdf")
    body = _body(title, evaluations, comparison, tables, figures)
    page = folder / PAGE
    page.write_text(document(title, body, AUTHOR), encoding="utf-8")
    return page


def _figures(evaluations: Sequence[Evaluation], bins: int) -> dict[str, Any]:
    # Figures show single models: the first seed of each method.
    first = [next(iter(group.values())) for group in grouped(evaluations).values()]
    predictions, labels = {e.method: e.prediction for e in first}, evaluations[0].labels
    figures = {
        "reliability": plots.reliability_diagram(predictions, labels, bins=bins, size=plots.DOUBLE),
        "risk-coverage": plots.risk_coverage(predictions, labels, size=plots.DOUBLE),
    }
    outside = {e.method: (e.prediction.entropy, e.outside.entropy) for e in first if e.outside}
    if outside:
        figures["entropy"] = plots.entropy_histogram(outside, size=plots.DOUBLE)
    return figures


CAPTIONS = {
    "reliability": "Accuracy against confidence, for the first seed of each method. In a "
    "calibrated model the bars reach the diagonal.",
    "risk-coverage": "Error rate on the remaining examples when the least confident ones are "
    "rejected, for the first seed of each method.",
    "entropy": "Entropy of the predictions for test examples and out-of-distribution examples.",
}


def _body(
    title: str,
    evaluations: Sequence[Evaluation],
    comparison: Comparison,
    tables: dict[str, Table],
    figures: dict[str, Any],
) -> Markup:
    shown = []
    for name, figure in figures.items():
        svg = Markup(plots.as_svg(figure, CAPTIONS[name]))
        paper = element("div", svg, class_="paper wide")
        shown.append(element("figure", paper, element("figcaption", CAPTIONS[name])))
    verdicts = [f"{name}: {comparison.verdict(name)}." for name in comparison.differences]
    return join(
        element("h1", title),
        element("p", _summary(evaluations)),
        element("p", f"Compared with {comparison.baseline}:") if comparison.differences else "",
        element("ul", *(element("li", text) for text in verdicts)),
        *(element("div", table.html(), class_="scroll dense") for table in tables.values()),
        *shown,
        _details(evaluations),
    )


def _summary(evaluations: Sequence[Evaluation]) -> str:
    counts = {method: len(group) for method, group in grouped(evaluations).items()}
    seeds = f"{len(evaluations) // len(counts)} of each"
    if len(set(counts.values())) > 1:
        seeds = "; ".join(f"{count} of {method}" for method, count in counts.items())
    return f"{len(counts)} methods on {len(evaluations[0].labels)} examples. Seeds: {seeds}."


def _details(evaluations: Sequence[Evaluation]) -> Markup:
    rows = [
        [f"{e.method}, seed {e.seed}", "; ".join(f"{k}: {v}" for k, v in e.details.items())]
        for e in evaluations
        if e.details
    ]
    if not rows:
        return Markup("")
    table = Table(["run", "details"], rows).html()
    return join(element("h2", "Runs"), element("div", table, class_="scroll"))


def decision_table(evaluations: Sequence[Evaluation]) -> Table:
    """Coverage and risk of abstention, and coverage and size of prediction sets, by method.

    Thresholds are fitted to one half of the examples and evaluated on the other, both ways, since
    their guarantees are for data that they were not fitted to.
    """
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(evaluations[0].labels), generator=generator)
    halves = order.tensor_split([len(order) // 2])
    caption = (
        f"Abstention with a risk of at most {RISK:.0%}, and prediction sets with a coverage of "
        f"{COVERAGE:.0%}; fitted to one half of the examples and evaluated on the other, both ways."
    )

    def measure(evaluation: Evaluation) -> dict[str, float]:
        found = [_decisions(evaluation, *halves), _decisions(evaluation, *halves[::-1])]
        # The risk is not defined if no example of a half is answered.
        means = torch.tensor([[*each.values()] for each in found], dtype=torch.float64).nanmean(0)
        return dict(zip(found[0], means.tolist(), strict=True))

    return _table(evaluations, measure, caption)


def _decisions(evaluation: Evaluation, fit: Tensor, test: Tensor) -> dict[str, float]:
    prediction, labels = evaluation.prediction.to("cpu"), evaluation.labels.cpu()
    known, new = (prediction[fit], labels[fit]), (prediction[test], labels[test])
    answered = fit_abstention(*known, risk=RISK).evaluate(*new)
    found = {"answered": answered["coverage"], "risk of answers": answered["risk"]}
    for method in ("split", "adaptive"):
        measured = fit_conformal(*known, coverage=COVERAGE, method=method).evaluate(*new)
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
    known = [value for value in values if not math.isnan(value)]
    return mean_and_std(known) if known else "-"
