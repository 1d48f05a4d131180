"""Measures over the level of noise."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from babn.plots.sizes import DOUBLE
from babn.plots.style import arranged, drawing, in_percent, line_look, new_figure


@drawing
def noise_curves(
    variances: Sequence[float], curves: Mapping[str, Mapping[str, Sequence[float]]]
) -> Figure:
    """One panel for each measure, with one curve for each method.

    Args:
        variances: Of the noise.
        curves: For each method and measure the values, shares of one, at each variance.
    """
    measures = list(next(iter(curves.values())))
    figure = new_figure((DOUBLE, 0.34 * DOUBLE))
    panels = figure.subplots(1, len(measures), squeeze=False)[0]
    for panel, measure in zip(panels, measures, strict=True):
        for index, (name, of_method) in enumerate(curves.items()):
            panel.plot(
                variances, of_method[measure], label=name, marker="o", ms=3, **line_look(index)
            )
        panel.set_xlabel("variance of noise")
        panel.set_ylabel(f"{measure} (%)")
        panel.set_xticks(list(variances))
        panel.margins(0.03, 0.08)
        panel.set_ylim(bottom=0)
        in_percent(panel.yaxis)
    panels[0].legend()
    return arranged(figure)
