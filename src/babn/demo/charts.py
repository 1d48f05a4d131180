"""The charts of the page as inline SVG; the style sheet gives their colours, also in the dark."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from babn.evaluation.markup import Markup, element, join
from babn.demo.metrics import BINS
from babn.demo.plots import axes, bar, image, line, stairs, text
from babn.demo.portrait import ClassBar

HISTOGRAM = 12
"""Bars of an entropy histogram."""

CELL, LABELS, LETTERS = 20, 84, 12
"""Size of a heat map's cells, room for the tokens beside it, and where tokens are cut."""

BAR_LEFT, BAR_WIDTH, BAR_STEP, BAR_NUMBERS = 142, 210, 30, 84
"""Where the bars of the intents begin, how long and how far apart they are, and what follows."""


def reliability_chart(name: str, bins: Float[Tensor, "bin 3"]) -> Markup:
    """Accuracy against confidence, from what `metrics.reliability` returns."""
    bars = []
    for i, (share, confidence, right) in enumerate(bins.tolist()):
        label = f"{share:.0%} of texts: confidence {confidence:.0%}, accuracy {right:.0%}"
        # Fainter where fewer texts stand behind a bar.
        opacity = 0.3 + 0.7 * min(1.0, 4 * share)
        bars += [bar(i / BINS, (i + 1) / BINS, right, label, opacity)] if share else []
    ticks = ["0 %", "50 %", "100 %"]
    return image(
        f"Reliability diagram of {name}: accuracy against confidence",
        axes("confidence", "accuracy", ticks, ticks),
        *bars,
        line((0, 0), (1, 1), "ideal"),
    )


def entropy_chart(
    name: str, inside: Float[Tensor, "text"], outside: Float[Tensor, "other"], most: float
) -> Markup:
    """Entropies of clear texts as bars and of out-of-scope texts as a line, up to `most`."""
    shares = [torch.histc(x.float(), HISTOGRAM, 0, most) / len(x) for x in (inside, outside)]
    top = max(0.1, float(torch.stack(shares).max()))
    bars = [
        bar(i / HISTOGRAM, (i + 1) / HISTOGRAM, share / top, f"{share:.0%} of clear texts", 0.7)
        for i, share in enumerate(shares[0].tolist())
    ]
    x_ticks = ["0", f"{most / 2:.1f}", f"{most:.1f}"]
    y_ticks = [f"{share:.0f} %" for share in (0, 50 * top, 100 * top)]
    return image(
        f"Entropy of clear and of out-of-scope texts under {name}",
        axes("entropy (nats)", "share of texts", x_ticks, y_ticks),
        *bars,
        stairs((shares[1] / top).tolist()),
    )


def class_chart(bars: Sequence[ClassBar]) -> Markup:
    """Probability of the most probable intents: mean, spread, and every sample as a dot."""
    label = "; ".join(f"{b.intent} {b.mean:.0%} plus or minus {b.std:.0%}" for b in bars)
    rows = [_class_row(bar, BAR_STEP * i + BAR_STEP / 2) for i, bar in enumerate(bars)]
    width = BAR_LEFT + BAR_WIDTH + BAR_NUMBERS
    return image(f"Probabilities: {label}", *rows, width=width, height=BAR_STEP * len(bars) + 4)


def _class_row(bar: ClassBar, y: float) -> Markup:
    def x(probability: float) -> float:
        return BAR_LEFT + BAR_WIDTH * min(max(probability, 0.0), 1.0)

    low, high = x(bar.mean - bar.std), x(bar.mean + bar.std)
    name = bar.intent.replace("_", " ")
    return join(
        text(BAR_LEFT - 8, y + 4, name, "end", class_="intended" if bar.intended else "other"),
        element("rect", x=BAR_LEFT, y=y - 9, width=BAR_WIDTH, height=18, class_="track"),
        element(
            "rect", x=BAR_LEFT, y=y - 9, width=x(bar.mean) - BAR_LEFT, height=18, class_="inside"
        ),
        *(element("circle", cx=x(p), cy=y, r=2.6, class_="sample") for p in bar.samples),
        element("line", x1=low, x2=high, y1=y + 12, y2=y + 12, class_="spread"),
        text(
            BAR_LEFT + BAR_WIDTH + 8,
            y + 4,
            f"{100 * bar.mean:.0f} % ± {100 * bar.std:.1f}",
            "start",
        ),
    )


def heat_map(
    label: str,
    tokens: Sequence[str],
    values: Sequence[Sequence[float]],
    shade: Callable[[float], float],
) -> Markup:
    """A matrix of query by key; `shade` makes a shade from 0 to 1 of each value."""
    names = [t if len(t) <= LETTERS else t[: LETTERS - 1] + "…" for t in tokens]
    cells = [
        _cell(i, j, f"{tokens[i]} to {tokens[j]}: {value:.2f}", shade(value))
        for i, row in enumerate(values)
        for j, value in enumerate(row)
    ]
    size = LABELS + CELL * len(tokens)
    return image(label, *_labels(names), *cells, width=size + 2, height=size + 2)


def _cell(i: int, j: int, label: str, shade: float) -> Markup:
    x, y = LABELS + CELL * j, LABELS + CELL * i
    opacity = 0.05 + 0.95 * min(max(shade, 0.0), 1.0)
    return element(
        "rect",
        element("title", label),
        x=x,
        y=y,
        width=CELL - 1,
        height=CELL - 1,
        class_="heat",
        fill_opacity=opacity,
    )


def _labels(names: Sequence[str]) -> list[Markup]:
    """Queries down the left side and keys, turned, along the top."""
    labels = []
    for i, name in enumerate(names):
        place = LABELS + CELL * i + CELL / 2
        turned = f"rotate(-90 {place + 4:g} {LABELS - 6:g})"
        labels.append(text(LABELS - 6, place + 4, name, "end"))
        labels.append(text(place + 4, LABELS - 6, name, "start", transform=turned))
    return labels
