"""`babn attack` on the command line, with an attacker that needs no TextAttack."""

import importlib.util
from pathlib import Path

import pytest
from attack_cases import repeater
from typer.testing import CliRunner

from babn.cli._app import app

pytestmark = pytest.mark.thorough


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner(env={"COLUMNS": "120", "NO_COLOR": "1"}).invoke(app(), list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_numbers_resources_and_pages_are_shown(
    belief_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("babn_paper.attacks.attack_run._textattack", repeater)
    code, output = run(
        "attack", str(belief_run), "--recipe", "bae", "--examples", "4", "--seed", "1"
    )
    assert code == 0
    for name in ("failed attacks", "accuracy under attack", "words changed", "queries", "errors"):
        assert name in output
    assert "masked LM: bert-base-uncased" in output
    assert "encoder: Universal Sentence Encoder" in output
    for threat in ("mean", "sample", "average"):
        page = belief_run / "attacks" / f"bae-{threat}" / "attacks.html"
        assert page.exists()
        assert str(page) in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--recipe", "pwws"), "error: recipe pwws is not known"),
        (("--recipe", "bae", "--threat", "sample"), "error: threat='sample' needs random"),
        (("--recipe", "bae", "--resources", "nowhere"), "error: resources='nowhere' is not"),
        (("--recipe", "bae", "--part", "nope"), "error:"),
    ],
)
def test_refuses_in_one_line(softmax_run: Path, arguments: tuple[str, ...], message: str) -> None:
    code, output = run("attack", str(softmax_run), *arguments)
    assert code == 2
    assert output.strip().splitlines()[-1].startswith(message)


def test_tells_how_to_install_textattack(
    softmax_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "textattack" else find(name)
    )
    code, output = run("attack", str(softmax_run), "--recipe", "textbugger")
    assert code == 2
    assert "pip install --no-deps textattack" in output
