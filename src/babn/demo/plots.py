"""Bars and lines inside a plot with axes, the basis of the page's charts."""

from collections.abc import Sequence

from babn.evaluation.markup import Markup, element, join

WIDTH, HEIGHT = 280, 215
LEFT, RIGHT, TOP, BOTTOM = 60, 20, 10, 42


def image(label: str, *children: str, width: float = WIDTH, height: float = HEIGHT) -> Markup:
    """An SVG image that scales with the page, with a description for those who cannot see it."""
    box = f"0 0 {width:g} {height:g}"
    return element(
        "svg", *children, viewBox=box, width=width, height=height, role="img", aria_label=label
    )


def x_place(x: float) -> float:
    """Where a horizontal position from 0 to 1 is in the image."""
    return LEFT + x * (WIDTH - LEFT - RIGHT)


def y_place(y: float) -> float:
    """Where a height from 0 to 1 is in the image."""
    return HEIGHT - BOTTOM - y * (HEIGHT - TOP - BOTTOM)


def bar(left: float, right: float, height: float, label: str, opacity: float) -> Markup:
    """An upright bar between two horizontal positions, all from 0 to 1."""
    return element(
        "rect",
        element("title", label),
        x=x_place(left) + 0.75,
        y=y_place(height),
        width=x_place(right) - x_place(left) - 1.5,
        height=y_place(0) - y_place(height),
        class_="inside",
        fill_opacity=opacity,
    )


def stairs(heights: Sequence[float]) -> Markup:
    """The outline of a histogram whose heights are from 0 to 1."""
    corners = [(0.0, 0.0)]
    for i, height in enumerate(heights):
        corners += [(i / len(heights), height), ((i + 1) / len(heights), height)]
    corners.append((1.0, 0.0))
    points = " ".join(f"{x_place(x):.1f},{y_place(y):.1f}" for x, y in corners)
    return element("polyline", points=points, class_="outside")


def line(start: tuple[float, float], end: tuple[float, float], kind: str) -> Markup:
    """A straight line between two points of the plot."""
    (x1, y1), (x2, y2) = start, end
    return element(
        "line", x1=x_place(x1), y1=y_place(y1), x2=x_place(x2), y2=y_place(y2), class_=kind
    )


def axes(x_title: str, y_title: str, x_ticks: Sequence[str], y_ticks: Sequence[str]) -> Markup:
    """Both axes with evenly spaced ticks from 0 to 1 and a title each."""
    middle = y_place(0.5)
    return join(
        *(_x_tick(i / (len(x_ticks) - 1), text) for i, text in enumerate(x_ticks)),
        *(_y_tick(i / (len(y_ticks) - 1), text) for i, text in enumerate(y_ticks)),
        line((0, 0), (1, 0), "axis"),
        line((0, 0), (0, 1), "axis"),
        text(x_place(0.5), HEIGHT - 6, x_title, "middle"),
        text(13, middle, y_title, "middle", transform=f"rotate(-90 13 {middle:g})"),
    )


def text(x: float, y: float, content: str, anchor: str, **attributes: str) -> Markup:
    """A line of text."""
    return element("text", content, x=x, y=y, text_anchor=anchor, **attributes)


def _x_tick(x: float, content: str) -> Markup:
    return text(x_place(x), y_place(0) + 15, content, "middle")


def _y_tick(y: float, content: str) -> Markup:
    grid = line((0, y), (1, y), "grid")
    return join(grid, text(LEFT - 6, y_place(y) + 4, content, "end"))
