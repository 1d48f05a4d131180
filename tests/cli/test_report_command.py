"""`babn report`."""

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import babn
from babn.cli._app import app

RUNNER = CliRunner(env={"COLUMNS": "100", "NO_COLOR": "1"})


@pytest.mark.thorough
def test_the_command_writes_a_page_from_saved_predictions(tmp_path: Path) -> None:
    labels = torch.arange(40) % 2
    for name, scale in (("softmax", 1.0), ("BABN", 2.0)):
        logits = torch.nn.functional.one_hot(labels).double() * scale + torch.randn(40, 2) * 0.5
        babn.Evaluation.of_logits(name, logits, labels).save(tmp_path / "runs" / name)
    out = tmp_path / "page"
    folders = [str(tmp_path / "runs" / name) for name in ("softmax", "BABN")]
    arguments = ["report", *folders, "--out", str(out), "--baseline", "softmax"]
    result = RUNNER.invoke(app(), arguments)
    assert result.exit_code == 0, result.output
    assert str(out / "report.html") in result.output
    assert "Compared with softmax:" in (out / "report.html").read_text()
    assert (out / "numbers.tex").read_text().count("\\\\") == 3


def test_a_folder_without_predictions_is_an_error_of_one_line(tmp_path: Path) -> None:
    result = RUNNER.invoke(app(), ["report", str(tmp_path), "--out", str(tmp_path / "page")])
    assert result.exit_code == 2
    assert "evaluation.json does not exist" in result.output
    assert not (tmp_path / "page").exists()
