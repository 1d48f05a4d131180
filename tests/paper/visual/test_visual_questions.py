"""Answers of trained models to questions about images, in Python and on the command line."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import babn
from babn.cli._app import app
from babn.errors import ConfigError, DataError
from babn.prediction.attention_maps import AttentionMap
from babn_paper.experiments.experiment import Experiment
from babn_paper.experiments.run import run
from babn_paper.visual.question import (
    QuestionSettings,
    answer_example,
    answer_file,
    answer_picture,
    averaged,
    load_run,
    most_and_least_confident,
    read_question,
    read_questions,
)

pytestmark = pytest.mark.thorough

FEW = QuestionSettings(samples=3)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learnt nothing yet."""
    folder = tmp_path_factory.mktemp("run") / "belief"
    fields = {"task": "easy-vqa", "model": "small", "data": "generated", "steps": 2}
    run(Experiment.from_dict({**fields, "batch_size": 8, "samples": 2}), folder)
    return folder


@pytest.fixture
def image(tmp_path: Path) -> Path:
    colours = np.random.default_rng(0).integers(0, 256, (50, 80, 3), dtype=np.uint8)
    Image.fromarray(colours).save(tmp_path / "image.png")
    return tmp_path / "image.png"


def invoke(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app(), list(words))
    return result.exit_code, result.output


def test_an_answer_holds_candidates_and_attention_maps(finished: Path, image: Path) -> None:
    task_model = load_run(finished)
    answer = answer_file(task_model, image, "What color is the shape?", FEW)

    assert len(answer.candidates) == 5
    shares = [each.probability for each in answer.candidates]
    assert shares == sorted(shares, reverse=True)
    assert answer.words == ["what", "color", "is", "the", "shape"] and not answer.notes
    assert answer.region_map.mean.shape == (1, 1, 1, 16) and answer.boxes == (4, 4)
    assert answer.word_map.mean.shape == (1, 1, 5, 5)
    torch.testing.assert_close(answer.region_map.mean.sum(), torch.tensor(1.0, dtype=torch.float64))
    noisy = answer_file(
        task_model, image, "What color is the shape?", QuestionSettings(samples=3, noise=5.0)
    )
    assert noisy.candidates != answer.candidates


def test_answers_are_those_of_the_same_question_in_the_test_data(finished: Path) -> None:
    task_model = load_run(finished)
    part = read_questions(task_model)
    example = part.examples[7]
    answer = answer_example(task_model, part, 7, FEW)
    data = task_model.task.encode(part, task_model.tokenizer, task_model.max_length, training=False)
    batch = data.batch(torch.tensor([7]), multiple=1)
    found = babn.predict(task_model.model, batch, 3)
    picture = part.images.picture(example.image)

    assert answer.question == example.question
    assert answer.candidates[0].probability == pytest.approx(float(found.probs.max()), rel=1e-4)
    assert picture is not None
    assert (
        answer_picture(task_model, picture, example.question, FEW).candidates == answer.candidates
    )
    with pytest.raises(DataError, match="example=9999"):
        answer_example(task_model, part, 9999, FEW)
    assert len(most_and_least_confident(task_model, part)) == 2


def test_what_the_model_cannot_read_is_told(finished: Path) -> None:
    task_model = load_run(finished)
    words, notes = read_question(task_model, f"What color {'is ' * 20} zebra?")
    assert len(words) == 14
    assert notes == ["unknown words: zebra", "truncated to 14 words"]
    for question in ("zebra giraffe", "??", ""):
        with pytest.raises(DataError, match="no word that the model knows"):
            read_question(task_model, question)


def test_heads_and_queries_are_averaged_by_weight() -> None:
    mean = torch.rand(1, 2, 3, 4).softmax(-1)
    spread = torch.rand(1, 2, 3, 4)
    found = averaged(AttentionMap("x", mean, spread))
    expected = (mean * spread).sum((1, 2)) / mean.sum((1, 2))
    torch.testing.assert_close(found.mean[:, 0, 0], mean.double().mean((1, 2)))
    torch.testing.assert_close(found.relative_std[:, 0, 0].float(), expected)


def test_the_command_answers_and_draws(finished: Path, image: Path, tmp_path: Path) -> None:
    out = tmp_path / "look.png"
    words = ["vqa", str(finished), "--image", str(image), "--samples", "3", "--out", str(out)]
    code, shown = invoke(*words, "--question", "Is there a circle?")
    assert code == 0, shown
    assert "probability" in shown and "Attention to the regions" in shown
    with Image.open(out) as drawn:
        assert drawn.width > 500
    code, shown = invoke("vqa", str(finished), "--example", "3", "--samples", "1")
    assert code == 0 and "One sample" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--image", "none.png", "--question", "what"], "none.png does not exist"),
        (["--question", "what"], "--example"),
        (["--image", "x.png"], "--question"),
        (["--example", "3", "--noise", "-1"], "--noise -1"),
    ],
)
def test_the_command_refuses(finished: Path, words: list[str], message: str) -> None:
    code, shown = invoke("vqa", str(finished), *words)
    assert code == 2 and message in " ".join(shown.split())


def test_a_broken_image_is_refused(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.jpg").write_bytes(b"\xff\xd8 no")
    with pytest.raises(DataError, match=r"bad\.jpg cannot be read"):
        answer_file(load_run(finished), tmp_path / "bad.jpg", "what color", FEW)


def test_runs_without_images_are_refused(tmp_path: Path) -> None:
    fields = {"task": "mrpc", "model": "small", "data": "builtin", "steps": 1, "max_length": 16}
    run(Experiment.from_dict({**fields, "batch_size": 4, "samples": 2}), tmp_path / "run")
    with pytest.raises(ConfigError, match="has no images"):
        load_run(tmp_path / "run")


@pytest.mark.slow
def test_the_visual_demo_writes_a_page(tmp_path: Path) -> None:
    code, shown = invoke("vqa-demo", "--quick", "--out", str(tmp_path / "demo"))
    assert code == 0, shown
    page = (tmp_path / "demo" / "index.html").read_text()
    assert page.count("<svg") == 4 and "BABN, sampled" in page
    assert (tmp_path / "demo" / "noise.png").exists()
    code, shown = invoke("vqa-demo", "--quick", "--out", str(tmp_path))
    assert code == 2 and "did not write" in shown


@pytest.mark.slow
def test_figure_3_in_quick_mode(tmp_path: Path) -> None:
    words = ["reproduce", "figure3", "--quick", "--out", str(tmp_path), "--set", "steps=2"]
    code, shown = invoke(*words)
    assert code == 0, shown
    assert len(list((tmp_path / "quick" / "figure3").glob("*.pdf"))) == 2
    code, shown = invoke(*words, "--only", "3, 11")
    assert code == 0 and (tmp_path / "quick" / "figure3" / "figure3-question-11.png").exists()
    code, shown = invoke(*words, "--only", "vqa2")
    assert code == 2 and "--only vqa2 is not the number" in shown
