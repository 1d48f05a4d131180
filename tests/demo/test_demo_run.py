"""The demo from the command line to the page."""

import json
import math
import re
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import babn
from babn.cli._app import app
from babn.data.intents import Ambiguous, Labelled
from babn.demo.evaluation import Answers, Texts, both_on_top
from babn.demo.output import PAGE, prepare
from babn.demo.page import AUTHOR
from babn.demo.run import differences
from babn.evaluation.comparison import Difference
from babn.evaluation.page import TargetError, marker


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What a quick demo prints, and the folder that it writes."""
    folder = tmp_path_factory.mktemp("demo") / "page"
    runner = CliRunner(env={"COLUMNS": "80", "NO_COLOR": "1"})
    result = runner.invoke(
        app(), ["demo", "--quick", "--epochs", "1", "--out", str(folder), "--seed", "3"]
    )
    assert result.exit_code == 0, result.output
    return result.output, folder


def test_table_has_every_row_and_fits_the_terminal(quick: tuple[str, Path]) -> None:
    output, _ = quick
    for name in ("softmax", "BAM, mean", "BAM, sampled", "BABN, mean", "BABN, sampled"):
        [row] = [line for line in output.splitlines() if re.match(rf"{name} +\d", line)]
        assert len(row.removeprefix(name).split()) == 9
        assert "…" not in row
    assert max(len(line.rstrip()) for line in output.splitlines() if "index.html" not in line) <= 80


def test_output_ends_with_the_page_and_the_next_commands(quick: tuple[str, Path]) -> None:
    output, folder = quick
    assert str(folder / PAGE) in output
    assert "babn inspect MODEL" in output.splitlines()[-1]


def test_page_needs_nothing_but_itself(quick: tuple[str, Path]) -> None:
    text = (quick[1] / PAGE).read_text(encoding="utf-8")
    assert len(text.encode()) < 500_000
    # Figures name the namespaces of SVG, and refer to their own parts.
    foreign = r"https?://(?!www\.w3\.org/)|\bsrc=|href=\"(?!#|data:)|@import|url\([^#]"
    assert not re.search(foreign, text)
    assert "<script" not in text
    assert marker(AUTHOR) in text


def test_page_shows_every_figure(quick: tuple[str, Path]) -> None:
    text = (quick[1] / PAGE).read_text(encoding="utf-8")
    assert text.count("ECE ") >= 3 and text.count("AUROC 0.") == 3
    assert text.count("posterior mean</text>") == text.count("std / mean</text>") == 2
    assert text.count('role="img"') == text.count("aria-label") == text.count("<svg") == 6


def test_results_hold_numbers_settings_and_versions(quick: tuple[str, Path]) -> None:
    results = json.loads((quick[1] / "results.json").read_text(encoding="utf-8"))
    assert results["settings"]["seed"] == 3
    assert results["versions"]["babn"] == babn.__version__
    assert set(results["rules"]) == {"softmax", "BAM", "BABN"}
    assert len(results["rows"]) == 5
    for row in results["rows"]:
        scores = row["scores"]
        assert 1 / 16 < scores["accuracy"] < 1
        assert 0 < scores["nll"] < 2 * math.log(16)
        assert (scores["auroc_mutual_information"] is None) == ("sampled" not in row["name"])


def test_differences_agree_with_the_rows(quick: tuple[str, Path]) -> None:
    results = json.loads((quick[1] / "results.json").read_text(encoding="utf-8"))
    first, last = (results["rows"][i]["scores"] for i in (0, -1))
    names = {"accuracy": "accuracy", "NLL": "nll", "ECE": "ece"}
    names["out-of-scope AUROC"] = "auroc_entropy"
    assert results["differences"].keys() == names.keys()
    for measure, difference in results["differences"].items():
        name = names[measure]
        assert difference["value"] == pytest.approx(last[name] - first[name])


def test_own_folder_may_be_written_again(quick: tuple[str, Path]) -> None:
    before = (quick[1] / PAGE).read_text()
    prepare(quick[1], force=False)
    assert (quick[1] / PAGE).read_text() == before


def test_other_folders_need_force(tmp_path: Path) -> None:
    prepare(tmp_path, force=False)
    (tmp_path / PAGE).write_text("<html>my own page</html>")
    with pytest.raises(TargetError, match="--force"):
        prepare(tmp_path, force=False)
    prepare(tmp_path, force=True)
    with pytest.raises(TargetError, match="is a file"):
        prepare(tmp_path / PAGE, force=True)


@pytest.mark.parametrize(
    ("low", "high", "more_is_better", "verdict"),
    [
        (0.1, 0.3, True, "better"),
        (0.1, 0.3, False, "worse"),
        (-0.1, 0.3, True, "no clear difference"),
        (-0.3, -0.1, True, "worse"),
        (-0.3, -0.1, False, "better"),
    ],
)
def test_verdicts(low: float, high: float, more_is_better: bool, verdict: str) -> None:
    difference = Difference((low + high) / 2, low, high, float("nan"), more_is_better)
    assert difference.verdict == verdict


def test_a_model_is_no_better_than_itself() -> None:
    prediction = babn.Prediction(torch.randn(2, 30, 4))
    answers = Answers(prediction, prediction, prediction)
    labels = tuple(torch.randint(4, (30,)).tolist())
    texts = Texts(Labelled(("text",) * 30, labels), (), ())
    for difference in differences(answers, answers, texts, seed=0).values():
        assert difference.value == difference.low == difference.high == 0
        assert difference.verdict == "no clear difference"


def test_both_on_top_takes_either_order() -> None:
    probs = torch.tensor([[0.5, 0.4, 0.1], [0.4, 0.5, 0.1], [0.5, 0.1, 0.4]])
    texts = [Ambiguous("text", ("a", "b"))] * 3
    assert both_on_top(probs, texts, ("a", "b", "c")) == pytest.approx(2 / 3)
