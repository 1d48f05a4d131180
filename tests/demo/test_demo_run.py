"""The demo from the command line to the pages."""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import babn
from babn.cli import _demo_view
from babn.cli._app import app
from babn.data import intents
from babn.data.intents import Labelled
from babn.demo import classifier, demo_run
from babn.demo.demo_run import (
    DROPOUT,
    SCALED,
    SOFTMAX,
    TRAINED,
    UNTRAINED,
    choose_examples,
    differences,
    find_source,
    pick_recipe,
    texts_to_test,
)
from babn.demo.outcome import (
    VIEW,
    Novelty,
    Outcome,
    Predictions,
    Row,
    Settings,
    Texts,
    predictions,
    prepare,
    score,
)
from babn.evaluation.comparison import Difference, compare
from babn.evaluation.html_pages import TargetError
from babn.evaluation.html_report import PAGE
from babn.prediction.batches import encode

CPU = torch.device("cpu")
NAMES = ("a", "b", "c")
TEXTS = Texts(
    Labelled(("wake me at six", "play a song now", "wake me"), (0, 1, 0)),
    ("what is the time",),
    ("wake me by song", "play"),
)
ALL = (*TEXTS.clear.texts, *TEXTS.outside, *TEXTS.ambiguous)


@pytest.fixture(scope="module", autouse=True)
def few_resamples() -> Iterator[None]:
    """Compares models with 15 resamples instead of 400; no verdict here needs more."""

    def compare_quickly(*args: Any, **settings: Any) -> babn.Comparison:
        return compare(*args, **settings | {"resamples": 15})

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(babn, "compare", compare_quickly)
        yield


def fewer_texts(part: str) -> Labelled:
    """All training texts, and a fourth of the others."""
    data = intents.in_scope(part)
    return data if part == "train" else Labelled(data.texts[::4], data.labels[::4])


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What a quick demo on few texts with few samples prints, and the folder that it writes."""
    folder = tmp_path_factory.mktemp("demo") / "page"
    runner = CliRunner(env={"COLUMNS": "80", "NO_COLOR": "1"})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(demo_run, "QUICK", replace(demo_run.QUICK, epochs=1))
        patched.setattr(demo_run, "SAMPLES", 5)
        patched.setattr(demo_run, "TUNING_SAMPLES", 3)
        few = SimpleNamespace(**vars(intents) | {"in_scope": fewer_texts})
        patched.setattr(demo_run, "intents", few)
        result = runner.invoke(app(), ["demo", "--quick", "--out", str(folder), "--seed", "3"])
    assert result.exit_code == 0, result.output
    return result.output, folder


@pytest.fixture(scope="module")
def results(quick: tuple[str, Path]) -> dict:
    """The numbers that a quick demo writes."""
    return json.loads((quick[1] / "results.json").read_text(encoding="utf-8"))


def test_table_has_every_row_and_fits_the_terminal(quick: tuple[str, Path]) -> None:
    output, _ = quick
    for name in (SOFTMAX, SCALED, DROPOUT, UNTRAINED, TRAINED):
        [row] = [line for line in output.splitlines() if re.match(rf"{name} {{2,}}\d", line)]
        assert len(row.removeprefix(name).split()) == len(_demo_view.COLUMNS)
        assert "…" not in row
    assert max(len(line.rstrip()) for line in output.splitlines() if ".html" not in line) <= 80


def test_output_names_the_pages_and_explains_every_column(quick: tuple[str, Path]) -> None:
    output, folder = quick
    calls = ("babn.convert(", "babn.tune_noise(", "babn.predict(")
    assert sorted(calls, key=output.index) == list(calls)
    assert str(folder / PAGE) in output and str(folder / VIEW) in output
    for name, (_, meaning) in _demo_view.COLUMNS.items():
        assert re.search(rf"^{re.escape(name)} +{meaning[:20]}", output, re.MULTILINE)


def test_pages_show_all_rows_and_both_sentences(quick: tuple[str, Path], results: dict) -> None:
    report, view = ((quick[1] / name).read_text(encoding="utf-8") for name in (PAGE, VIEW))
    for name in (SOFTMAX, SCALED, DROPOUT, UNTRAINED, TRAINED):
        assert f'<th scope="row">{name}</th>' in report
    assert report.count("<svg") == 3
    for each in results["examples"]:
        assert json.dumps(each["text"]) in view
    assert json.dumps(results["examples"][0]["intent"]) in view


def test_results_hold_numbers_settings_and_versions(results: dict) -> None:
    assert results["settings"]["seed"] == 3
    assert results["versions"]["babn"] == babn.__version__
    names = [row["name"] for row in results["rows"]]
    assert names == [SOFTMAX, SCALED, DROPOUT, UNTRAINED, TRAINED]
    for row in results["rows"]:
        assert 1 / 32 < row["accuracy"] < 1
        assert 0 < row["nll"] < 2 * math.log(16)
        assert (row["level"] is None) == (row["name"] in (SOFTMAX, SCALED, DROPOUT))
        for measure in ("outside_information", "ambiguous_information"):
            assert (row[measure] is None) == (row["name"] in (SOFTMAX, SCALED))


def test_differences_agree_with_the_rows(results: dict) -> None:
    rows = {row["name"]: row for row in results["rows"]}
    names = {"accuracy": "accuracy", "NLL": "nll", "ECE": "ece"}
    names["out-of-scope AUROC"] = "outside_entropy"
    assert results["differences"].keys() == rows.keys() - {SOFTMAX}
    for row, found in results["differences"].items():
        assert found.keys() == names.keys()
        for measure, difference in found.items():
            name = names[measure]
            assert difference["value"] == pytest.approx(rows[row][name] - rows[SOFTMAX][name])


def test_examples_have_their_uncertainty(results: dict) -> None:
    sure, unsure = results["examples"]
    assert (sure["kind"], unsure["kind"]) == ("sure", "unsure")
    for each in (sure, unsure):
        low, probability, high = (each[name] for name in ("low", "probability", "high"))
        assert 0 <= low <= probability + 1e-6 and probability <= high + 1e-6 <= 1 + 2e-6
        assert 0 <= each["disagreement"] <= 1 and each["mutual_information"] >= 0


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


def made_row(name: str, shift: float, level: float | None) -> Row:
    """A row whose predictions for out-of-scope texts are less certain for larger shifts."""
    logits = torch.randn(4, 60, 3, generator=torch.Generator().manual_seed(0))
    kinds = (2 * logits, (2 - shift) * logits, logits)
    found = Predictions(*(babn.Prediction(kind) for kind in kinds))
    return Row(name, found, score(found, made_texts()), level)


def made_texts() -> Texts:
    """Sixty texts of each kind."""
    labels = torch.randint(3, (60,), generator=torch.Generator().manual_seed(1)).tolist()
    texts = ("text",) * 60
    return Texts(Labelled(texts, tuple(labels)), texts, texts)


def made_outcome(ours: float, theirs: float) -> Outcome:
    """An outcome of two rows with given shifts."""
    settings = Settings(quick=True)
    source = find_source(settings)
    rows = [made_row(SOFTMAX, theirs, None), made_row(TRAINED, ours, 1.0)]
    found = differences(rows, made_texts(), seed=0)
    recipe = pick_recipe(settings, source)
    return Outcome(
        settings,
        source,
        recipe,
        made_texts(),
        rows,
        found,
        [],
        babn.View(""),
        Novelty(0.9, 0.04, 0.6),
    )


def test_a_model_is_no_better_than_itself() -> None:
    outcome = made_outcome(1.0, 1.0)
    for difference in outcome.differences[TRAINED].values():
        assert difference.value == difference.low == difference.high == 0
    [verdict, detection, novelty] = _demo_view.verdicts(outcome)
    assert verdict == (f"{TRAINED}: no clear difference in accuracy, NLL, ECE, out-of-scope AUROC")
    assert "softmax" in detection and TRAINED in detection
    assert "AUROC 90.0" in novelty and "flags 60.0 % of them and 4.0 %" in novelty


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict", "scores"),
    [
        (1.9, 0.5, "better in out-of-scope AUROC", "softmax 55.4; BABN, trained 99.6"),
        (0.5, 1.9, "worse in out-of-scope AUROC", "softmax 99.6; BABN, trained 55.4"),
    ],
)
def test_output_says_who_detects_out_of_scope_texts(
    ours: float, theirs: float, verdict: str, scores: str
) -> None:
    [line, detection, _] = _demo_view.verdicts(made_outcome(ours, theirs))
    assert verdict in line
    assert scores in detection


def converted(seed: int) -> tuple[torch.nn.Module, object]:
    """One small model, converted with a seed of its own, and its tokenizer."""
    model, tokenizer = classifier.load(classifier.find_source("small"), ALL, 3, seed=0)
    for parameter in model.parameters():  # keys of random models are too much alike
        parameter.data *= 4 if parameter.ndim > 1 else 1
    torch.manual_seed(seed)
    return babn.convert(model, None, encode(tokenizer, ALL, CPU)), tokenizer


def test_softmax_is_the_converted_model_without_noise() -> None:
    model, tokenizer = converted(0)
    babn.set_noise_level(model, 0.0)
    found = predictions(model, tokenizer, TEXTS, 1, 0, lambda count: None)
    babn.revert(model).eval()
    with torch.no_grad():
        expected = torch.cat([model(**encode(tokenizer, [text], CPU)).logits for text in ALL])
    logits = [found.clear, found.outside, found.ambiguous]
    assert torch.allclose(torch.cat([x.sample_logits[0] for x in logits]), expected, atol=1e-5)


def test_examples_are_chosen_by_mutual_information() -> None:
    model, tokenizer = converted(0)
    agreeing, varied = (
        torch.tensor([[9.0, 0, 0], [9.0, 0, 0]]),
        torch.tensor([[9.0, 0, 0], [0, 9, 0]]),
    )
    wrong = agreeing.roll(1, -1)  # the first label is the other one
    clear = torch.stack([wrong, agreeing.roll(1, -1), varied], dim=1)
    ambiguous = torch.stack([varied, agreeing], dim=1)
    found = Predictions(*(babn.Prediction(x) for x in (clear, clear[:, :1], ambiguous)))
    sure, unsure = choose_examples(model, tokenizer, found, TEXTS, NAMES, seed=0)
    assert unsure.text == "wake me by song"
    assert sure.text == "play a song now"


def test_test_texts_are_those_of_the_test_split() -> None:
    texts = texts_to_test()
    assert len(texts.clear) == 256
    assert 50 < len(texts.outside) < 100 and 30 < len(texts.ambiguous) < 60
