"""The scripts in `examples` run and print their results."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def run_example(script: str, folder: Path, *options: str) -> str:
    # A few steps of training leave attention nearly uniform, so that noise hardly changes anything.
    warnings = ["-W", "error::UserWarning", "-W", "ignore:All samples give nearly the same"]
    command = [sys.executable, *warnings, str(EXAMPLES / script), "--quick", *options]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.slow
def test_uncertainty_of_a_language_model(tmp_path: Path) -> None:
    output = run_example("llm_uncertainty.py", tmp_path)
    assert "characters shuffled" in output
    assert "'last:1' takes 1 of 2 attention calls" in output
    assert output.count("length-normalised entropy") == 3


@pytest.mark.slow
def test_sentiment_with_abstention(tmp_path: Path) -> None:
    output = run_example("sentiment_abstention.py", tmp_path)
    for method in ("softmax", "BABN"):
        assert f"\n{method}\n" in output
    assert output.count("of reviews classified correctly") == 2 and "abstains from" in output


@pytest.mark.slow
def test_a_vision_transformer_under_noise(tmp_path: Path) -> None:
    output = run_example("vit_images.py", tmp_path, "--out", "pictures")
    assert output.count("accuracy") == 2
    assert {path.name for path in (tmp_path / "pictures").iterdir()} == {"clean.png", "noisy.png"}
