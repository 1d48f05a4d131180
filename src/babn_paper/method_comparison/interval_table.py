"""Table of a comparison: measures with intervals, differences within the noise, and costs."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

import torch
from jaxtyping import Float, Int
from torch import Tensor

from babn.evaluation.comparison import draw
from babn.evaluation.tables import Table
from babn_paper.method_comparison.comparison_runs import Result
from babn_paper.method_comparison.example_scores import LOWER_IS_BETTER

RESAMPLES = 200
"""Bootstrap resamples of the intervals."""

TAIL = 0.025
"""Probability below and above an interval."""

NEAR = "≈"
"""Marks values whose difference from the best is within the noise."""

COSTS: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "training": ("training", lambda x: f"{x:.1f}x"),
    "passes": ("passes", lambda x: f"{x:.0f}"),
    "memory": ("memory", lambda x: f"{x:.1f}x"),
    "lines": ("lines", lambda x: f"{x:.0f}"),
}
"""Heading and format of each cost."""

Values = dict[str, Float[Tensor, "draw"]]
"""A measure by method: its value on all examples, then on each resample."""


def comparison_table(results: Sequence[Result], part: str, caption: str = "") -> Table:
    """Measures on a test set with 95 % intervals, and costs.

    Intervals come from a bootstrap over examples and seeds, with the same resamples for all
    methods. The best value of a column is bold. Other values are marked if the interval of their
    difference from it contains 0.
    """
    methods = list(dict.fromkeys(result.method for result in results))
    groups = {name: [r for r in results if r.method == name] for name in methods}
    values = resampled(groups, part)
    names = [n for n, each in values.items() if not all(x[0].isnan() for x in each.values())]
    columns, best = [], set()
    for place, name in enumerate(names, 1):
        cells, row = _cells(values[name], LOWER_IS_BETTER[name])
        columns.append(cells)
        best.add((row, place))
    memory = _memory(groups)
    costs = [key for key in COSTS if key != "memory" or memory]
    for key in costs:
        each = memory if key == "memory" else _mean_costs(groups, key)
        columns.append([COSTS[key][1](each[method]) for method in methods])
    columns.append([f"{_tried(groups[method])}" for method in methods])
    heads = ["method", *names, *(COSTS[key][0] for key in costs), "tried"]
    rows = [list(row) for row in zip(methods, *columns, strict=True)]
    return Table(heads, rows, caption, frozenset(best))


def resampled(groups: Mapping[str, Sequence[Result]], part: str) -> dict[str, Values]:
    """Every measure of every method, on all examples and on resamples of examples and seeds."""
    first = next(iter(groups.values()))[0].scores[part]
    rows = draw(len(first.correct), RESAMPLES, 0)
    others = draw(len(first.outside), RESAMPLES, 1) if len(first.outside) else None
    found: dict[str, Values] = {}
    for method, results in groups.items():
        seeds = draw(len(results), RESAMPLES, 2)
        drawn = [_drawn(result, part, rows, others) for result in results]
        for name in drawn[0]:
            values = torch.stack([each[name] for each in drawn])  # seed, draw
            chosen = values.gather(0, seeds.T).mean(0)
            found.setdefault(name, {})[method] = chosen
    return found


def _drawn(
    result: Result,
    part: str,
    rows: Int[Tensor, "draw example"],
    others: Int[Tensor, "draw other"] | None,
) -> dict[str, Float[Tensor, "draw"]]:
    scores = result.scores[part]
    each = [
        scores.drawn(chosen, None if others is None else others[i]).measures()
        for i, chosen in enumerate(rows)
    ]
    return {
        name: torch.tensor([m.get(name, torch.nan) for m in each], dtype=torch.float64)
        for name in LOWER_IS_BETTER
    }


def _cells(values: Values, lower_is_better: bool) -> tuple[list[str], int]:
    """The cells of a column, and the row of the best value."""
    known = [method for method, drawn in values.items() if not drawn[0].isnan()]
    sign = 1 if lower_is_better else -1
    best = min(known, key=lambda method: float(sign * values[method][0]))
    cells = dict.fromkeys(values, "-")
    for method in known:
        low, high = interval(values[method])
        cells[method] = f"{float(values[method][0]):.3f} [{low:.3f}, {high:.3f}]"
        if method != best and holds_zero(values[method] - values[best]):
            cells[method] += f" {NEAR}"
    return list(cells.values()), list(values).index(best)


def interval(drawn: Float[Tensor, "draw"]) -> tuple[float, float]:
    """The central 95 % of the resamples."""
    low, high = drawn[1:].nanquantile(drawn.new_tensor([TAIL, 1 - TAIL])).tolist()
    return low, high


def holds_zero(difference: Float[Tensor, "draw"]) -> bool:
    """Whether the interval of a difference contains 0."""
    low, high = interval(difference)
    return low <= 0 <= high


def _mean_costs(groups: Mapping[str, Sequence[Result]], key: str) -> dict[str, float]:
    return {
        method: fmean(result.details["cost"][key] for result in results)
        for method, results in groups.items()
    }


def _memory(groups: Mapping[str, Sequence[Result]]) -> dict[str, float]:
    """Peak memory of predictions in units of the smallest, where it was measured."""
    if any(r.details["cost"]["memory"] is None for results in groups.values() for r in results):
        return {}
    peaks = _mean_costs(groups, "memory")
    return {method: peak / min(peaks.values()) for method, peak in peaks.items()}


def _tried(results: Sequence[Result]) -> int:
    return max(result.details["tried"] for result in results)
