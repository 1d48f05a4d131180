"""`babn train`, `babn evaluate`, `babn sweep` and `babn reproduce`."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_experiments import same_weights, tiny
from typer.testing import CliRunner

from babn.cli._app import app
from babn_paper.experiments.config_files import write_experiment
from babn_paper.experiments.run_folder import RunFolder

pytestmark = pytest.mark.thorough

RUNNER = CliRunner(env={"COLUMNS": "120", "NO_COLOR": "1"})


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_experiment(tiny(), tmp_path / "tiny.toml")
    return tmp_path / "tiny.toml"


def invoke(*words: str) -> tuple[int, str]:
    result = RUNNER.invoke(app(), list(words))
    return result.exit_code, result.output


def test_training_and_evaluating_print_the_same_table(config: Path) -> None:
    code, output = invoke("train", "tiny.toml", "--set", "steps=2", "--seed", "3")
    assert code == 0, output
    folder = Path("runs/tiny+steps=2/seed-3")
    assert f"run folder: {folder}" in output
    assert RunFolder(folder).experiment().steps == 2
    table = output[output.index("mrpc, dev") :]
    code, again = invoke("evaluate", str(folder))
    assert code == 0, again
    assert again[again.index("mrpc, dev") :] == table
    assert "accuracy" in table and "sampled" in table


def test_errors_are_one_line(config: Path) -> None:
    for words, part in [
        (["train", "none.toml"], "neither a file nor built in"),
        (["train", "tiny.toml", "--set", "stepps=2"], "no field stepps"),
        (["train", "tiny.toml", "--data", "/nowhere"], "/nowhere"),
        (["train", "tiny.toml", "--set", "task=mrpx"], "task='mrpx'"),
        (["evaluate", "nothing"], "holds no run"),
        (["reproduce", "table9"], "Tables: table1, table2, table3"),
        (["sweep", "none"], "neither a file nor built in"),
        (["reproduce", "table1", "--jobs", "0"], "jobs=0"),
    ]:
        code, output = invoke(*words)
        assert code == 2, (words, output)
        errors = [line for line in output.splitlines() if "error:" in line]
        assert len(errors) == 1 and part in errors[0], (words, output)


@pytest.mark.slow
def test_a_quick_table_has_every_row(config: Path) -> None:
    words = ["reproduce", "table1", "--quick", "--only", "mrpc", "--seeds", "1"]
    code, output = invoke(*words, "--set", "steps=2")
    assert code == 0, output
    for name in ("softmax", "BAM", "BABN (paper)", "BABN (default)", "86.5", "88.5", "89.2"):
        assert name in output
    assert "not run" not in output
    code, shown = invoke("reproduce", "table1", "--quick", "--seeds", "1", "--show")
    assert code == 0, shown
    assert "not run" in shown and "SQuAD 2.0" in shown


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_run_resumes_to_the_same_weights(how: signal.Signals, config: Path) -> None:
    settings = ["--set", "steps=200", "--set", "checkpoint_every=5"]
    command = [sys.executable, "-m", "babn", "train", "tiny.toml", *settings]
    process = subprocess.Popen([*command, "--out", "killed"], env={**os.environ, "COLUMNS": "80"})
    until = time.monotonic() + 120
    while not list(Path("killed/checkpoints").glob("step-*")) and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(how)
    process.wait(timeout=60)
    assert RunFolder("killed").state == "unfinished"
    subprocess.run([*command, "--out", "killed", "--resume"], check=True, capture_output=True)
    subprocess.run([*command, "--out", "whole"], check=True, capture_output=True)
    assert same_weights(Path("killed"), Path("whole"))
