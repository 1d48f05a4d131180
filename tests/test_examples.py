"""The scripts in examples run and tell their story."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def story(script: str, folder: Path, *options: str) -> str:
    command = [sys.executable, "-W", "error::UserWarning", str(EXAMPLES / script), "--quick"]
    run = subprocess.run([*command, *options], cwd=folder, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.slow
def test_uncertainty_of_a_language_model(tmp_path: Path) -> None:
    told = story("llm_uncertainty.py", tmp_path)
    assert "characters shuffled" in told
    assert "'last:1' takes 1 of 2 attention calls" in told
    assert told.count("length-normalised entropy") == 3


@pytest.mark.slow
def test_sentiment_with_abstention(tmp_path: Path) -> None:
    told = story("sentiment_abstention.py", tmp_path)
    for method in ("softmax", "BABN"):
        assert f"\n{method}\n" in told
    assert told.count("of reviews right") == 2 and "abstains from" in told


@pytest.mark.slow
def test_a_vision_transformer_under_noise(tmp_path: Path) -> None:
    told = story("vit_images.py", tmp_path, "--out", "pictures")
    assert told.count("accuracy") == 2
    assert {path.name for path in (tmp_path / "pictures").iterdir()} == {"clean.png", "noisy.png"}
