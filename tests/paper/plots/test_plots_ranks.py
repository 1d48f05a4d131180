"""Critical difference diagrams."""

import pytest

from babn_paper.plots.ranks import alike, critical_difference


@pytest.mark.parametrize(
    ("ranks", "distance", "groups"),
    [
        ([1.0, 2.0, 3.0], 0.5, []),
        ([1.0, 2.0, 3.0], 1.0, [(0, 1), (1, 2)]),
        ([1.0, 1.5, 2.0, 4.0, 4.2], 1.0, [(0, 2), (3, 4)]),
        ([1.0, 2.0], 9.0, [(0, 1)]),
    ],
)
def test_groups_are_the_largest_within_the_distance(
    ranks: list[float], distance: float, groups: list[tuple[int, int]]
) -> None:
    assert alike(ranks, distance) == groups


def test_diagram_names_every_method_and_joins_groups() -> None:
    figure = critical_difference({"b": 2.0, "a": 1.0, "c": 2.5}, 0.6)
    (panel,) = figure.axes
    assert [text.get_text() for text in panel.texts] == ["a", "b", "c"]
    assert len(panel.lines) == 3 + 1
    assert "0.60" in panel.get_xlabel()
