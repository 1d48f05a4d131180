"""Attention figures: their numbers, and legible labels for any tokens."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import babn
from babn import plots
from babn.errors import ConfigError
from babn.plots.attention import readable
from models import CASES
from plot_checks import WIDTHS, attention_map, clipped, texts, tick_texts, touching

HOSTILE = [
    "$x_1$",
    "$",
    "\\frac{1}{2}",
    "a_b^c",
    "%&#~{}",
    "<b>&amp;",
    "\n",
    "\x00",
    "\u202e",
    "\ud800",
    "",
    "  ",
    "مرحبا",
    "שלום",
    "Ġthe",
    "▁der",
    "中文",
    "🙂",
    "e" * 50,
]


def panels(figure: Figure) -> list[Axes]:
    """The heat maps: means of all heads, then std/mean of all heads."""
    return [panel for panel in figure.axes if panel.images]


def matrix(panel: Axes) -> np.ndarray:
    return np.ma.filled(panel.images[0].get_array(), np.nan)


def words(count: int) -> list[str]:
    return [f"word{i}" for i in range(count)]


def test_panels_show_mean_and_spread() -> None:
    case = CASES["bert"]
    found = babn.attention_maps(case.converted(), case.batch())[1]
    figure = plots.attention_figure(found, words(9), example=0, heads=2)
    mean, spread = panels(figure)
    assert np.allclose(matrix(mean), found.mean[0, 2])
    assert np.allclose(matrix(spread), found.relative_std[0, 2])
    assert {"posterior mean", "std / mean", "query", "key"} <= set(texts(figure))


def test_padding_is_cut_off() -> None:
    found = attention_map()
    mean, spread = panels(plots.attention_figure(found, words(4), example=1))
    assert np.allclose(matrix(mean), found.mean[1, 0, :4, :4])
    assert matrix(spread).shape == (4, 4)
    assert tick_texts(mean.xaxis) == tick_texts(mean.yaxis) == words(4)


def test_cross_attention_has_two_lists_of_tokens() -> None:
    mean, _ = panels(plots.attention_figure(attention_map(3, 5), ["a", "b"], list("vwxyz")))
    assert tick_texts(mean.yaxis) == ["a", "b"]
    assert tick_texts(mean.xaxis) == list("vwxyz")
    assert matrix(mean).shape == (2, 5)


def test_masked_pairs_are_blank_in_spread() -> None:
    _, spread = panels(plots.attention_figure(attention_map(causal=True), words(6)))
    assert np.array_equal(
        np.isnan(matrix(spread)),
        np.ones((6, 6)).astype(bool) & np.triu(np.ones((6, 6)), 1).astype(bool),
    )


@pytest.mark.thorough
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("heads", [1, 3, 12])
def test_heads_fit_onto_a_page_and_share_their_scales(heads: int, width: float) -> None:
    found = attention_map(14, 14, 12)
    figure = plots.attention_figure(found, words(14), heads=range(heads), size=width)
    shown = panels(figure)
    assert len(shown) == 2 * heads
    for i in range(heads):
        assert np.allclose(matrix(shown[i]), found.mean[0, i])
        assert np.allclose(matrix(shown[heads + i]), found.relative_std[0, i])
    assert len({panel.images[0].get_clim() for panel in shown}) == 2
    assert figure.get_figheight() <= 9
    assert not clipped(figure)
    assert not touching(figure)


@pytest.mark.thorough
def test_panels_do_not_overlap() -> None:
    figure = plots.attention_figure(attention_map(heads=5), words(6), heads=range(5))
    boxes = [panel.get_position() for panel in panels(figure)]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


@pytest.mark.thorough
def test_heads_are_named_where_there_are_several() -> None:
    named = texts(plots.attention_figure(attention_map(), words(6), heads=[2, 0]))
    assert [text for text in named if text.startswith("head")] == ["head 2", "head 0"]
    alone = texts(plots.attention_figure(attention_map(), words(6), heads=2))
    assert not [text for text in alone if text.startswith("head")]


@pytest.mark.thorough
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("length", [5, 20, 128])
def test_labels_of_long_inputs_are_thinned(length: int, width: float) -> None:
    figure = plots.attention_figure(attention_map(length, length, 1), words(length), size=width)
    mean, _ = panels(figure)
    for axis in (mean.xaxis, mean.yaxis):
        shown = tick_texts(axis)
        assert shown == [f"word{int(place)}" for place in axis.get_ticklocs()]
        assert min(8, length) <= len(shown) <= length
    assert not touching(figure)
    assert not clipped(figure)


@pytest.mark.thorough
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("queries", "keys"),
    [*(pytest.param(*size, marks=pytest.mark.thorough) for size in [(6, 100), (100, 6)]), (1, 1)],
)
def test_maps_far_from_square_keep_room_for_their_labels(
    queries: int, keys: int, width: float
) -> None:
    found = attention_map(queries, keys, 1)
    figure = plots.attention_figure(found, words(queries), words(keys), size=width)
    assert figure.get_figheight() <= 9
    assert not touching(figure)
    assert not clipped(figure)


@pytest.mark.thorough
def test_a_given_height_is_kept() -> None:
    figure = plots.attention_figure(attention_map(), words(6), heads=range(3), size=(5, 6))
    assert figure.get_size_inches().tolist() == [5, 6]
    assert not clipped(figure)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:Glyph")
@pytest.mark.parametrize("suffix", ["png", "pdf", "svg"])
def test_hostile_tokens_are_drawn(suffix: str, tmp_path: object) -> None:
    found = attention_map(len(HOSTILE), len(HOSTILE), 1)
    figure = plots.attention_figure(found, HOSTILE, size=(12, 7))
    shown = tick_texts(panels(figure)[0].xaxis)
    assert shown[:6] == HOSTILE[:6]
    assert shown[6:12] == ["\\n", "\\x00", "\\u202e", "\\ud800", "", "␣␣"]
    assert not clipped(figure)
    assert plots.save(figure, tmp_path / f"figure.{suffix}").stat().st_size > 1000


def test_dollars_do_not_start_a_formula() -> None:
    figure = plots.attention_figure(attention_map(2, 2), ["$x_1$", "$\\oops{$"])
    labels = panels(figure)[0].get_xticklabels()
    assert not any(label.get_parse_math() or label.get_usetex() for label in labels)
    assert not clipped(figure)


def test_private_characters_are_escaped() -> None:
    # Python does not count them as printable, and no font has them.
    assert readable(["\U000f1234"]) == ["\\U000f1234"]


def test_a_character_without_a_font_is_a_warning() -> None:
    with pytest.warns(UserWarning, match="missing from font"):
        plots.attention_figure(attention_map(2, 2), ["\U00016f00a", "b"])


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:Glyph")
@settings(max_examples=15, deadline=None)
@given(st.lists(st.text(max_size=20), min_size=1, max_size=6))
def test_any_text_can_be_drawn(tokens: list[str]) -> None:
    found = attention_map(6, 6, 1)
    figure = plots.attention_figure(found, tokens)
    assert not clipped(figure)
    assert len(tick_texts(panels(figure)[0].xaxis)) == len(tokens)


def test_a_fixed_spread_has_a_scale_from_zero() -> None:
    fixed = babn.AttentionMap("bam/0", attention_map().mean, torch.full((2, 3, 6, 6), 0.12))
    _, spread = panels(plots.attention_figure(fixed, words(6)))
    assert spread.images[0].get_clim() == pytest.approx((0, 0.12))


def test_maps_and_tokens_that_do_not_fit_are_refused() -> None:
    found = attention_map(6, 6)
    with pytest.raises(ConfigError, match=r"tokens has 7 entries and layer/0 6"):
        plots.attention_figure(found, words(7))
    with pytest.raises(ConfigError, match=r"tokens has 0 entries"):
        plots.attention_figure(found, [])
    with pytest.raises(ConfigError, match=r"tokens .*Give a list"):
        plots.attention_figure(found, "word")
    with pytest.raises(ConfigError, match=r"heads=3 does not exist: layer/0 has heads 0 to 2"):
        plots.attention_figure(found, words(6), heads=3)
    with pytest.raises(ConfigError, match="heads is empty"):
        plots.attention_figure(found, words(6), heads=[])
    with pytest.raises(ConfigError, match=r"example=-1 does not exist: .* 0 to 1"):
        plots.attention_figure(found, words(6), example=-1)
    with pytest.raises(ConfigError, match="keys has 9 entries and layer/0 8"):
        plots.attention_figure(attention_map(6, 8), words(6), words(9))
    with pytest.raises(ConfigError, match=r"keys is not given.*6 queries and 8 keys"):
        plots.attention_figure(attention_map(6, 8), words(6))
    with pytest.raises(ConfigError, match=r"size=\(3, 1\) has no room for heads=3"):
        plots.attention_figure(found, words(6), heads=range(3), size=(3, 1))
