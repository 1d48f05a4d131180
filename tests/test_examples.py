"""The examples run, with few steps."""

import runpy
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_uncertainty_of_a_language_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["--steps", "2", "--noisy-steps", "2", "--samples", "2"]
    monkeypatch.setattr(sys, "argv", ["llm_uncertainty.py", *few])
    threads = torch.get_num_threads()
    try:
        runpy.run_path(str(EXAMPLES / "llm_uncertainty.py"), run_name="__main__")
    finally:
        torch.set_num_threads(threads)
    printed = capsys.readouterr().out
    assert "characters shuffled" in printed
    assert "'last:1' takes 1 of 2 attention calls" in printed
    assert printed.count("length-normalised entropy") == 3
