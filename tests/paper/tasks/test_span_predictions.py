"""What follows from answers to questions."""

import gzip
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from babn.errors import FormatError
from babn_paper.tasks.span_predictions import TEMPERATURES, SpanPrediction, SpanPredictions


def scores(at_one: float, slope: float = 0.0) -> tuple[float, ...]:
    """Log-probabilities by temperature."""
    return tuple(at_one + slope * math.log2(temperature) for temperature in TEMPERATURES)


def answer(
    name: str, golds: tuple[str, ...], *best: tuple[str, float], null: float = -9.0
) -> SpanPrediction:
    return SpanPrediction(name, golds, tuple((text, math.log(p)) for text, p in best), null)


RIGHT = answer("1", ("the bell",), ("Bell", 0.6), ("tower", 0.2))
HALF = answer("2", ("big bell",), ("bell", 0.45), ("ship", 0.45))
WRONG = answer("3", ("ship",), ("tower", 0.3), ("ship", 0.1))


def test_scores_of_1_1() -> None:
    found = SpanPredictions((RIGHT, HALF, WRONG), False).measure()
    assert found["exact"] == pytest.approx(1 / 3)
    assert found["F1"] == pytest.approx((1 + 2 / 3) / 3)
    # The right and the wrong answer share a bin: two confidences of 0.75, one right.
    assert found["ECE-10"] == pytest.approx((abs(0.75 + 0.75 - 1) + 0.5) / 3)
    assert found["error AUROC"] == pytest.approx(0.75)


def test_no_answer_is_one_in_2_0() -> None:
    silent = answer("1", (), ("tower", 0.2), null=math.log(0.6))
    missed = answer("2", ("bell",), ("bell", 0.3), null=math.log(0.5))
    loud = answer("3", (), ("ship", 0.9), null=math.log(0.1))
    found = SpanPredictions((silent, missed, loud), True).measure()
    assert found["exact (threshold 0)"] == found["F1 (threshold 0)"] == pytest.approx(1 / 3)
    assert found["HasAns F1 (threshold 0)"] == 0
    assert found["NoAns F1 (threshold 0)"] == pytest.approx(1 / 2)
    assert found["exact"] == found["F1"] == pytest.approx(2 / 3)
    assert found["ECE-10"] == pytest.approx(((1 - 0.75) + 0.625 + 0.9) / 3)
    assert set(found) >= {"exact", "F1", "NLL", "NLL + TS", "ECE-10", "ECE-10 + TS", "AURC"}


def test_likelihood_of_right_spans() -> None:
    questions = tuple(
        replace(RIGHT, id=str(i), gold_scores=scores(-1.0, 0.5) if i % 2 else scores(-2.0, -0.5))
        for i in range(4)
    )
    outside = replace(RIGHT, id="none")
    found = SpanPredictions((*questions, outside), False).measure()
    assert found["NLL"] == pytest.approx(1.5)
    assert found["gold in window"] == pytest.approx(4 / 5)
    # Odd questions gain by heat, even ones by cold, and each gets what most of the others gain by.
    lowest, highest = math.log2(TEMPERATURES[0]), math.log2(TEMPERATURES[-1])
    expected = ((1 - 0.5 * lowest) + (2 + 0.5 * highest)) / 2
    assert found["NLL + TS"] == pytest.approx(expected)


def test_nothing_to_compute_is_nan() -> None:
    found = SpanPredictions((RIGHT,), False).measure()
    assert math.isnan(found["NLL"]) and math.isnan(found["NLL + TS"])
    assert math.isnan(found["error AUROC"])
    assert found["ECE-10"] == found["ECE-10 + TS"] == pytest.approx(0.25)


def test_temperatures_calibrate_other_questions() -> None:
    """Nine of ten are right at a confidence of two thirds, so that colder is better."""
    questions = []
    for i in range(400):
        text = "bell" if i % 20 < 18 else "tower"
        questions.append(answer(str(i), ("bell",), (text, 0.6), ("ship", 0.3)))
    found = SpanPredictions(tuple(questions), False).measure()
    assert found["ECE-10"] == pytest.approx(0.9 - 2 / 3)
    assert found["ECE-10 + TS"] < 0.05


def test_samples_that_agree() -> None:
    sure = replace(RIGHT, samples=("the bell", "bell", "bell", "bell"))
    torn = replace(WRONG, samples=("tower", "ship", "ship", "Tower."))
    found = SpanPredictions((sure, torn), False).measure()
    assert (found["agreement"], found["agreement AUROC"]) == (0.75, 1.0)
    assert "agreement" not in SpanPredictions((RIGHT, WRONG), False).measure()


def test_questions_without_any_text() -> None:
    blank = SpanPrediction("1", ("bell",), (), -0.5)
    found = SpanPredictions((blank, RIGHT), False).measure()
    assert found["exact"] == 0.5
    assert SpanPredictions((replace(blank, golds=()), RIGHT), True).measure()["exact"] == 1


@pytest.mark.parametrize("unanswerable", [False, True])
def test_what_is_saved_gives_the_same_numbers(tmp_path: Path, unanswerable: bool) -> None:
    odd = replace(
        HALF, golds=("naïve\u2028“東京”\n",), samples=("", "x"), gold_scores=scores(-3.25)
    )
    others = (replace(each, samples=("bell", "ship")) for each in (RIGHT, WRONG))
    saved = SpanPredictions((odd, *others), unanswerable)
    saved.save(tmp_path / "new" / "folder")
    found = SpanPredictions.load(tmp_path / "new" / "folder")
    assert found == saved
    assert repr(found.measure()) == repr(saved.measure())
    saved.save(tmp_path / "new" / "folder")
    assert SpanPredictions.load(tmp_path / "new" / "folder") == saved


def test_damaged_answers_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="does not exist"):
        SpanPredictions.load(tmp_path)
    SpanPredictions((RIGHT, WRONG), False).save(tmp_path)
    description, lines = tmp_path / "answers.json", tmp_path / "answers.jsonl.gz"
    whole = lines.read_bytes()
    lines.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FormatError, match="damaged"):
        SpanPredictions.load(tmp_path)
    lines.write_bytes(gzip.compress(gzip.decompress(whole).split(b"\n")[0] + b"\n"))
    with pytest.raises(FormatError, match="has 1 of 2 answers"):
        SpanPredictions.load(tmp_path)
    lines.write_bytes(gzip.compress(b"{}\n{}\n"))
    with pytest.raises(FormatError, match="damaged"):
        SpanPredictions.load(tmp_path)
    content = json.loads(description.read_text())
    description.write_text(json.dumps(content | {"format": 9}))
    with pytest.raises(FormatError, match="format 9 of 'spans'"):
        SpanPredictions.load(tmp_path)
    description.write_text("[]")
    with pytest.raises(FormatError, match="damaged"):
        SpanPredictions.load(tmp_path)
