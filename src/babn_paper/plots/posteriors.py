"""Figures that compare approximate posteriors with exact ones."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from babn.plots import DOUBLE
from babn.plots.figures import (
    GREY,
    arranged,
    check_some,
    drawing,
    in_percent,
    legend_above,
    line_look,
    new_figure,
)

Records = Sequence[Mapping[str, Any]]
"""One record for each posterior, model and seed, as the scripts in `paper` write them."""

MARKS = "osD^vP*"
"""Markers, which distinguish curves without colour."""


PATHS = {
    "Gibbs": "Gibbs, other chains",
    "both": "both paths",
    "upward": "upward path alone",
    "downward": "downward path alone",
}
"""Labels of the encoders by name."""


@drawing
def encoder_agreement(records: Records) -> Figure:
    """The Weibull encoder's marginals against Gibbs sampling, layer by layer.

    One row for each depth; from left to right the KL, the bias of means, the ratio of
    standard deviations, and the coverage of credible intervals. A dot is the mean over seeds; layer
    1 is nearest the prior.

    Args:
        records: The records that `paper/encoder_against_gibbs.py` writes.
    """
    check_some(records, "records", "the records of paper/encoder_against_gibbs.py")
    depths = sorted({record["layers"] for record in records})
    names = list(dict.fromkeys(record["posterior"] for record in records))
    figure = new_figure((DOUBLE, 1.45 * len(depths) + 0.5))
    panels = figure.subplots(len(depths), 4, squeeze=False, sharey="col")
    for row, depth in zip(panels.tolist(), depths, strict=True):
        for index, name in enumerate(names):
            group = [r for r in records if r["layers"] == depth and r["posterior"] == name]
            look: dict[str, Any] = line_look(index) | {"marker": MARKS[index], "markersize": 3.5}
            for panel, key in zip(row, ("kl", "absolute_bias", "spread"), strict=False):
                heights = [fmean(r["by_layer"][i][key] for r in group) for i in range(depth)]
                panel.plot(range(1, depth + 1), heights, label=PATHS.get(name, name), **look)
            _draw_coverage(row[3], [p for r in group for p in r["by_layer"]], look)
        _label_depth(row, depth, last=depth == depths[-1])
    for panel, title in zip(
        panels[0], ("KL (nats)", "|bias| / std", "std ratio", "true units held (%)"), strict=True
    ):
        panel.set_title(title)
    legend_above(figure)
    return arranged(figure)


@drawing
def posterior_checks(records: Records) -> Figure:
    """Evidence gap, coverage and variance of gradients of attention posteriors.

    A mark in the first panel is one seed; lines in the second are means over seeds.

    Args:
        records: The records that `paper/posterior_checks.py` writes.
    """
    check_some(records, "records", "the records of paper/posterior_checks.py")
    names = list(dict.fromkeys(record["posterior"] for record in records))
    groups = {name: [r for r in records if r["posterior"] == name] for name in names}
    figure = new_figure((DOUBLE, 2.6))
    gap, cover, variance = figure.subplots(1, 3, width_ratios=[1, 1.2, 0.8])
    for index, (name, group) in enumerate(groups.items()):
        look: dict[str, Any] = line_look(index) | {"marker": MARKS[index], "markersize": 3.5}
        gaps = [record["gap"] for record in group]
        gap.plot(gaps, [index] * len(gaps), **{**look, "linestyle": "none"})
        _draw_coverage(cover, group, {**look, "label": name})
    gap.axvline(0, color=GREY, linewidth=0.6)
    gap.set(yticks=range(len(names)), yticklabels=names, xlabel="evidence minus bound (nats)")
    gap.invert_yaxis()
    gap.margins(x=0.1)
    cover.set(xlabel="level of the interval (%)", ylabel="true weights held (%)")
    _draw_variances(variance, [g for r in records for g in r.get("gradients", [])])
    legend_above(figure)
    return arranged(figure)


def _draw_coverage(panel: Axes, parts: Sequence[Mapping[str, Any]], look: dict[str, Any]) -> None:
    """Share of true values in intervals against their level, beside the ideal."""
    levels = list(parts[0]["coverage"])
    shares = [fmean(part["coverage"][level][0] for part in parts) for level in levels]
    panel.plot([0.45, 1], [0.45, 1], color=GREY, linewidth=0.6, linestyle=(0, (4, 2)))
    panel.plot([float(level) for level in levels], shares, **look)
    panel.set(xlim=(0.45, 1))
    panel.set_xticks([0.5, 0.8, 0.95])
    in_percent(panel.xaxis, panel.yaxis)


def _draw_variances(panel: Axes, gradients: Sequence[Mapping[str, Any]]) -> None:
    """Draws gradient variances with sampled relative to analytic KL, before and after training."""
    stages = list(dict.fromkeys(each["stage"] for each in gradients))
    places = [stages.index(each["stage"]) for each in gradients]
    ratios = [each["monte_carlo"]["variance"] / each["analytic"]["variance"] for each in gradients]
    panel.plot(
        places, ratios, "o", color=GREY, markersize=3.5
    )  # a colour that is not in the legend
    panel.axhline(1, color=GREY, linewidth=0.6)
    panel.set(xticks=range(len(stages)), xticklabels=stages, xlim=(-0.6, len(stages) - 0.4))
    panel.set_ylim(0, 1.15 * max([1, *ratios]))
    panel.set_ylabel("variance of gradients,\nMonte Carlo / analytic")


def _logarithmic(panel: Axes) -> None:
    """Sets a logarithmic scale with plain labels, since the style does not parse formulas."""
    panel.set_yscale("log")
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.yaxis.set_minor_formatter(NullFormatter())


def _label_depth(row: list[Axes], depth: int, last: bool) -> None:
    row[0].set_ylabel(f"{depth} layer{'s' if depth > 1 else ''}")
    for panel in row[:3]:
        panel.set_xlim(0.5, depth + 0.5)
        panel.set_xticks(range(1, depth + 1))
        panel.set_xlabel("layer" if last else "")
    for panel in row[:2]:
        _logarithmic(panel)
    row[2].axhline(1, color=GREY, linewidth=0.6)
    row[3].set_xlabel("level (%)" if last else "")
