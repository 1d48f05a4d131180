"""Saving figures; drawing has no side effects."""

import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import matplotlib
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from babn import plots
from babn.errors import ConfigError
from babn_paper.plots.images import attention_on_image
from plot_checks import answers, attention_map, several

pytestmark = pytest.mark.thorough


def figures() -> dict[str, Figure]:
    """One figure of each kind."""
    probs, labels = several(2)
    words = ["a", "$b$", "c"]
    return {
        "reliability": plots.reliability_diagram(probs, labels),
        "risk": plots.risk_coverage(probs, labels),
        "entropy": plots.entropy_histogram(torch.rand(9), torch.rand(9)),
        "attention": plots.attention_figure(attention_map(), words, heads=[0, 1]),
        "image": attention_on_image(attention_map(2, 4), torch.rand(8, 9), (2, 2)),
    }


@pytest.mark.parametrize("suffix", ["pdf", "svg", "png"])
def test_the_same_figure_gives_the_same_bytes(suffix: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    for name, figure in figures().items():
        first, second = (plots.save(figure, tmp_path / f"{name}{i}.{suffix}") for i in (1, 2))
        assert first.read_bytes() == second.read_bytes(), name


@pytest.mark.parametrize("suffix", ["pdf", "svg", "png"])
def test_the_same_input_gives_the_same_bytes(suffix: str, tmp_path: Path) -> None:
    probs, labels = answers()
    paths = []
    for i in range(2):
        figure = plots.reliability_diagram(probs, labels)
        paths.append(plots.save(figure, tmp_path / f"{i}.{suffix}"))
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_figures_survive_pickling(tmp_path: Path) -> None:
    for name, figure in figures().items():
        again = pickle.loads(pickle.dumps(figure))
        one, other = (plots.save(x, tmp_path / "figure.svg").read_bytes() for x in (figure, again))
        assert one == other, name


def test_fonts_are_embedded_as_truetype(tmp_path: Path) -> None:
    for name, figure in figures().items():
        written = plots.save(figure, tmp_path / f"{name}.pdf").read_bytes()
        assert b"/FontFile2" in written, name
        assert b"/CIDFontType2" in written, name
        assert b"/Type3" not in written, name
        assert b"/CreationDate" not in written, name


def test_text_of_vector_images_stays_text(tmp_path: Path) -> None:
    written = plots.save(plots.risk_coverage(*several(2)), tmp_path / "figure.svg").read_text()
    assert ">coverage (%)</text>" in written
    assert "<dc:date>" not in written


def test_bitmaps_have_200_dots_per_inch(tmp_path: Path) -> None:
    figure = plots.risk_coverage(*several(2), size=(3.3, 2.0))
    with Image.open(plots.save(figure, tmp_path / "figure.PNG")) as image:
        assert image.size == (660, 400)


def test_folders_are_made_and_nothing_is_left_beside(tmp_path: Path) -> None:
    path = plots.save(plots.risk_coverage(*several(1)), str(tmp_path / "a" / "b" / "figure.png"))
    assert path == tmp_path / "a" / "b" / "figure.png"
    assert list(path.parent.iterdir()) == [path]


def test_a_failure_leaves_the_old_file_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "figure.png"
    path.write_text("old")

    def broken(self: Figure, target: Path, **_: object) -> None:
        target.write_text("half")
        raise OSError("disk full")

    monkeypatch.setattr(Figure, "savefig", broken)
    with pytest.raises(OSError, match="disk full"):
        plots.save(Figure(), path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["figure.gif", "figure", ".pdf"])
def test_unknown_suffixes_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"path=.*Give a name that ends in \.pdf, \.svg, \.png"):
        plots.save(Figure(), tmp_path / "new" / name)
    assert not (tmp_path / "new").exists()


def test_settings_of_the_user_neither_change_nor_matter(tmp_path: Path) -> None:
    probs, labels = answers()
    plain = plots.save(plots.risk_coverage(probs, labels), tmp_path / "plain.png").read_bytes()
    theirs = {
        "font.size": 20,
        "axes.facecolor": "black",
        "axes.grid": True,
        "savefig.bbox": "tight",
    }
    with matplotlib.rc_context(theirs):
        before = dict(matplotlib.rcParams)
        figure = plots.risk_coverage(probs, labels)
        assert plots.save(figure, tmp_path / "theirs.png").read_bytes() == plain
        assert dict(matplotlib.rcParams) == before


def test_threads_draw_the_same_figures(tmp_path: Path) -> None:
    probs, labels = answers()

    def write(i: int) -> bytes:
        figure = plots.reliability_diagram(probs, labels)
        return plots.save(figure, tmp_path / f"{i}.png").read_bytes()

    before = dict(matplotlib.rcParams)
    with ThreadPoolExecutor(4) as pool:
        written = list(pool.map(write, range(8)))
    assert len(set(written)) == 1
    assert dict(matplotlib.rcParams) == before


def python(code: str) -> str:
    """What a fresh interpreter prints."""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_pyplot_is_never_loaded() -> None:
    code = """
import sys, torch
from babn import plots
plots.risk_coverage(torch.eye(3), torch.arange(3))
print("matplotlib.pyplot" in sys.modules)
"""
    assert python(code) == "False"


def test_missing_matplotlib_is_named() -> None:
    code = """
import sys
sys.modules["matplotlib"] = None
import babn.errors, babn.plots
for name in babn.plots.__all__:
    try:
        getattr(babn.plots, name)
    except babn.errors.MissingExtraError as error:
        print(error)
"""
    lines = python(code).splitlines()
    functions = [name for name in plots.__all__ if callable(getattr(plots, name))]
    assert lines == [
        f"babn.plots.{x} needs matplotlib: pip install 'babn[plots]'" for x in functions
    ]


def test_every_exported_name_exists() -> None:
    assert all(hasattr(plots, name) for name in plots.__all__)
    with pytest.raises(AttributeError, match="no attribute 'pie_chart'"):
        plots.pie_chart  # noqa: B018
