"""Own data by commands alone: train, resume, evaluate, tune, report and view."""

from pathlib import Path

import pytest
import torch
import transformers
from own_cases import FAST, prices, questions, quiz, reviews, translations
from small_experiments import same_weights
from typer.testing import CliRunner

import babn
from babn.cli._app import app
from babn.evaluation.predictions import Evaluation
from babn.tensor_files import read_tensors, write_tensors
from babn.viewer.column import column
from babn_paper.experiments.run_folder import RunFolder

RUNNER = CliRunner(env={"COLUMNS": "120", "NO_COLOR": "1"})


def invoke(*words: str, code: int = 0) -> str:
    result = RUNNER.invoke(app(), list(words))
    assert result.exit_code == code, result.output
    return result.output


def train(*words: str, code: int = 0, settings: list[str] = FAST) -> str:
    overrides = [word for each in settings for word in ("--set", each)]
    return invoke("train", *words, *overrides, code=code)


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    path = reviews(tmp_path_factory.mktemp("data"))
    columns = ["--text", "review", "--label", "verdict"]
    return ["--task", "classification", "--train", str(path), *columns, "--model", "small"]


@pytest.fixture(scope="module")
def run(flags: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "own"
    output = train(*flags, "--out", str(folder))
    assert "is held out (seed 0)" in output and "classification, dev" in output
    assert "classes: 'leave, it', 'love it', 'so-so'" in output
    return folder


def test_a_run_keeps_its_classes(run: Path) -> None:
    experiment = RunFolder(run).experiment()
    assert experiment.options["classes"] == ["leave, it", "love it", "so-so"]
    assert experiment.settings == {"noise_over": "keys"}
    model = babn.load(run / "model")
    assert model.config.id2label == {0: "leave, it", 1: "love it", 2: "so-so"}
    assert "accuracy" in invoke("evaluate", str(run))


def test_other_data_is_evaluated_as_a_whole(run: Path, flags: list[str]) -> None:
    output = invoke("evaluate", str(run), "--data", flags[3])
    assert "classification, test" in output


def test_noise_is_tuned_saved_and_used(run: Path) -> None:
    output = invoke("tune-noise", str(run))
    assert "<- chosen" in output and "fitted to 7 examples of dev" in output
    level = float(output.split("noise level ")[1].split()[0])
    found = babn.load(run / "model").babn.level
    assert found == pytest.approx(level, rel=1e-2)
    assert "classification, dev" in output


@pytest.mark.thorough
def test_reports_and_pages_are_made_of_it(run: Path, tmp_path: Path) -> None:
    invoke("report", str(run / "predictions"), "--out", str(tmp_path / "report"))
    assert (tmp_path / "report" / "report.html").exists()
    page = tmp_path / "view.html"
    invoke("view", str(run), "--text", "the soup was lovely", "--samples", "2", "--out", str(page))
    assert "leave, it" in page.read_text()


def test_other_settings_and_existing_runs_are_refused(run: Path, flags: list[str]) -> None:
    assert "--overwrite begins again" in train(*flags, "--out", str(run), code=2)
    wrong = train(*flags, "--out", str(run), "--resume", "--seed", "3", code=2)
    assert "was started with seed=0 (now 3)" in wrong
    assert "holds a run" not in train(*flags, "--out", str(run), "--resume")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Give a configuration, or --task"),
        (["table1/mrpc-belief", "--text", "a"], "--text needs --task"),
        (["--task", "classification", "--data", "x"], "--data does not apply"),
        (["--task", "classification", "--train", "none.csv", "--model", "small"], "none.csv"),
    ],
)
def test_errors_are_one_line_and_leave_no_folder(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    output = invoke("train", *words, code=2)
    assert output.startswith("error:") and message in output and output.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_bad_development_file_stops_the_run_before_training(
    flags: list[str], tmp_path: Path
) -> None:
    (tmp_path / "dev.csv").write_text("review,verdict\nfine,love it\nfine,hate it\n")
    words = ["--dev", str(tmp_path / "dev.csv"), "--out", str(tmp_path / "run")]
    assert "dev.csv:3: verdict='hate it' is not a class" in train(*flags, *words, code=2)
    assert not (tmp_path / "run").exists()


@pytest.mark.thorough
def test_ctrl_c_names_the_checkpoint_and_how_to_continue(
    run: Path, flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from babn_paper.experiments import training

    folder, step = tmp_path / "stopped", training._Loop._step

    def interrupted_step(self: training._Loop, number: int, function: object) -> None:
        if number == 2:
            raise KeyboardInterrupt
        step(self, number, function)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(training._Loop, "_step", interrupted_step)
        output = train(*flags, "--out", str(folder), code=130)
    assert f"the newest checkpoint is {folder}/checkpoints/step-2. Repeat" in output
    assert "--resume to continue" in output
    train(*flags, "--out", str(folder), "--resume")
    train(*flags, "--out", str(tmp_path / "whole"))
    assert same_weights(folder, tmp_path / "whole")


@pytest.mark.thorough
@pytest.mark.parametrize("task", ["regression", "multiple-choice"])
def test_other_texts_train_and_evaluate(task: str, tmp_path: Path) -> None:
    words = {
        "regression": ["--train", str(prices(tmp_path)), "--text", "ad", "--label", "price"],
        "multiple-choice": ["--train", str(quiz(tmp_path)), "--text", "q", "--label", "a",
                            "--choices", "options"],
    }[task]  # fmt: skip
    run = str(tmp_path / "run")
    output = train("--task", task, *words, "--model", "small", "--out", run)
    assert ("Pearson" if task == "regression" else "accuracy") in output
    invoke("evaluate", run)
    assert "<- chosen" in invoke("tune-noise", run)
    if task == "regression":
        check_residual(Path(run))
    report = tmp_path / "report"
    invoke("report", f"{run}/predictions", "--out", str(report))
    assert ("RMSE" if task == "regression" else "ECE-10") in (report / "numbers.md").read_text()


def check_residual(run: Path) -> None:
    """The residual of tune-noise is in the model and in the predictions."""
    residual = babn.get_residual(babn.load(run / "model"))
    found = Evaluation.load(run / "predictions" / "dev-sampled").prediction
    assert residual > 0 and found.residual == pytest.approx(residual)
    measures = RunFolder(run).read_results()["measures"]["dev"]
    assert {"NLL", "in 90 % interval"} <= set(measures["sampled"])
    assert "NLL" not in measures["mean"]


@pytest.fixture(scope="module")
def regression(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("regression")
    data = ["--train", str(prices(folder)), "--text", "ad", "--label", "price"]
    train("--task", "regression", *data, "--model", "small", "--out", str(folder / "run"))
    invoke("tune-noise", str(folder / "run"))
    return folder / "run"


def test_a_regression_predicts_in_the_units_of_the_data(regression: Path, tmp_path: Path) -> None:
    run = regression
    model = babn.load(run / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(run / "model")
    check_residual(run)
    with torch.no_grad():
        raw = model.eval()(**tokenizer("flat 1 with 1 rooms", return_tensors="pt")).logits
    options = RunFolder(run).experiment().options
    mean = babn.predict(model, ["flat 1 with 1 rooms"], tokenizer=tokenizer).probs.item()
    expected = raw.item() * options["scale"] + options["mean"]
    assert options["mean"] == 2000 and mean == pytest.approx(expected, rel=0.1)
    shown = column(model, tokenizer, "flat 1 with 1 rooms")["prediction"]
    assert shown["kind"] == "identity" and shown["mean"][0] == pytest.approx(mean, abs=0.01)
    babn.save_adapter(model, tmp_path / "adapter")
    again = babn.load_adapter(babn.revert(model), tmp_path / "adapter")
    assert babn.predict(again, ["flat 1 with 1 rooms"], tokenizer=tokenizer).probs.item() == mean


def test_a_regression_of_an_earlier_version_is_evaluated_alike(regression: Path) -> None:
    """Its model does not hold the units of the data; those in experiment.toml are used."""
    run = regression
    before = RunFolder(run).read_results()["measures"]
    path = run / "model" / "model.safetensors"
    tensors, about = read_tensors(path)
    assert tensors.pop("babn.output_mean") and tensors.pop("babn.output_scale")
    write_tensors(path, tensors, about)
    (run / "model" / "checksums.json").unlink()
    invoke("evaluate", str(run))
    assert RunFolder(run).read_results()["measures"] == before


@pytest.fixture(scope="module")
def softmax(flags: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "softmax"
    train(*flags, "--out", str(folder), settings=[*FAST, "method=softmax"])
    return folder


@pytest.mark.thorough
def test_a_run_without_noise_is_converted_into_another(softmax: Path, tmp_path: Path) -> None:
    assert "with --out" in invoke("tune-noise", str(softmax), code=2)
    new = tmp_path / "noisy"
    output = invoke("tune-noise", str(softmax), "--out", str(new), "--samples", "3")
    assert "<- chosen" in output and f"saved in {new / 'model'}" in output.replace("\n", "")
    experiment = RunFolder(new).experiment()
    assert experiment.method == "belief" and experiment.settings == {"noise_over": "keys"}
    assert RunFolder(softmax).experiment().method == "softmax"
    check_usable(new, tmp_path)
    assert "holds other files" in invoke("tune-noise", str(softmax), "--out", str(new), code=2)


def check_usable(run: Path, tmp_path: Path) -> None:
    """Every command that takes a run takes this one."""
    invoke("evaluate", str(run))
    invoke("report", str(run / "predictions"), "--out", str(tmp_path / "report"))
    page = tmp_path / "view.html"
    invoke("view", str(run), "--text", "the soup was lovely", "--samples", "2", "--out", str(page))
    assert page.exists()


@pytest.mark.thorough
@pytest.mark.parametrize("named", [True, False])
def test_a_model_of_transformers_is_converted_into_a_run(
    named: bool, softmax: Path, flags: list[str], tmp_path: Path
) -> None:
    plain = tmp_path / "plain"
    model = babn.revert(babn.load(softmax / "model"))
    classes = ["leave, it", "love it", "so-so"]
    if not named:
        model.config.id2label = {i: f"LABEL_{i}" for i in range(3)}
    model.save_pretrained(plain)
    transformers.AutoTokenizer.from_pretrained(softmax / "model").save_pretrained(plain)
    dev = tmp_path / "dev.csv"
    rows = zip(["lovely soup", "grim soup", "soup"] * 3, range(9), strict=True)
    lines = [f'{text},"{classes[i % 3] if named else i % 3}"' for text, i in rows]
    dev.write_text("\n".join(["review,verdict", *lines]))
    new = tmp_path / "run"
    words = ["--task", "classification", "--dev", str(dev), "--text", "review", "--label"]
    given = [str(plain), *words, "verdict", "--samples", "3"]
    assert "--out is missing" in invoke("tune-noise", *given, code=2)
    output = invoke("tune-noise", *given, "--out", str(new))
    assert "fitted to 9 examples of dev" in output
    check_usable(new, tmp_path)
    assert babn.get_noise_level(babn.load(new / "model")) >= 0


def test_models_and_data_that_do_not_fit_are_refused(
    softmax: Path, flags: list[str], tmp_path: Path
) -> None:
    headless = tmp_path / "headless"
    model = babn.revert(babn.load(softmax / "model"))
    model.albert.save_pretrained(headless)
    words = ["--task", "classification", "--dev", flags[3], "--text", "review", "--label"]
    given = [*words, "verdict", "--out", str(tmp_path / "new")]
    assert "has no trained head" in invoke("tune-noise", str(headless), *given, code=2)
    model.config.id2label = {0: "a", 1: "b", 2: "c"}
    model.save_pretrained(tmp_path / "other")
    assert "the model ['a', 'b', 'c']" in invoke(
        "tune-noise", str(tmp_path / "other"), *given, code=2
    )
    assert "--dev needs --task" in invoke("tune-noise", str(softmax), "--dev", "x.csv", code=2)
    assert not (tmp_path / "new").exists()


@pytest.mark.thorough
def test_translations_train_evaluate_and_translate(tmp_path: Path) -> None:
    run, sizes = str(tmp_path / "run"), ["vocab_size=80", "embedding_size=8", "encoder_size=8"]
    sizes += ["decoder_size=16", "attention_size=8", "layers=1"]
    settings = [*FAST, "options.beam=2", *(f"sizes.{each}" for each in sizes)]
    words = ["--task", "translation", "--train", translations(tmp_path), "--out", run]
    assert "BLEU" in train(*words, settings=settings)
    assert "BLEU" in invoke("evaluate", run)
    invoke("translate", run, str(tmp_path / "my.de"), "--out", str(tmp_path / "out.en"))
    assert len((tmp_path / "out.en").read_text().splitlines()) == 30


@pytest.mark.thorough
def test_questions_about_images_train_evaluate_and_answer(tmp_path: Path) -> None:
    run, path = str(tmp_path / "run"), questions(tmp_path)
    words = ["--task", "vqa", "--train", str(path), "--images", str(tmp_path / "photos")]
    output = train(*words, "--out", run, settings=[*FAST, "options.size=32", "model=small"])
    assert "22 of 24" in output and "accuracy (yes/no)" in output
    invoke("evaluate", run)
    image = str(tmp_path / "photos" / "p0.png")
    assert "probability" in invoke("vqa", run, "--image", image, "--question", "which colour")
