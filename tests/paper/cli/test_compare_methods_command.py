"""`babn compare-methods` on a small file."""

import csv
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from babn.cli._app import app
from babn_paper.method_comparison import method_catalogue as catalogue

METHODS = ("deterministic", "MC dropout + TS", "BABN, not trained")


def reviews(path: Path) -> Path:
    words = {"love it": ("lovely", "warm", "bright"), "leave it": ("grim", "cold", "stale")}
    rows = [
        f"the {noun} was {word} and {other} {i},{label}"
        for i, noun in enumerate(("soup", "room", "bed") * 3)
        for label, own in words.items()
        for word in own
        for other in own
    ]
    path.write_text("\n".join(["review,verdict", *rows]) + "\n")
    return path


def run(folder: Path, *more: str, methods: tuple[str, ...] = METHODS, code: int = 0) -> str:
    train, outside = reviews(folder / "reviews.csv"), folder / "outside.csv"
    outside.write_text("review\n" + "soup of bed and room\n" * 30)
    named = [word for name in methods for word in ("--method", name)]
    data = ["--train", str(train), "--text", "review", "--label", "verdict", "--model", "small"]
    words = ["compare-methods", *data, "--outside", str(outside), *named, "--quick", *more]
    words += ["--set", "learning_rate=1e-3", "--out", str(folder / "out")]
    result = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app(), words)
    assert result.exit_code == code, result.output
    return result.output


@pytest.mark.thorough
def test_one_table_of_all_methods_is_written(tmp_path: Path) -> None:
    output = run(tmp_path)
    with (tmp_path / "out/methods.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == list(METHODS)
    for column in ("accuracy", "NLL", "ECE", "outside AUROC", "outside FPR95"):
        assert re.match(r"\d\.\d{3} \[\d\.\d{3}, \d\.\d{3}\]", rows[0][column]), rows[0]
    assert rows[0]["training"] == "1.0x" and rows[1]["tried"] == "10"
    assert (tmp_path / "out/METHODS.md").read_text().splitlines()[0] in output

    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "out/results").iterdir()}
    assert len(files) == 2 * len(METHODS)
    run(tmp_path, methods=(*METHODS, "deterministic + TS"))
    assert all(path.stat().st_mtime_ns == before for path, before in files.items())
    assert len((tmp_path / "out/METHODS.md").read_text().splitlines()) > 6
    about = json.loads((tmp_path / "out/comparison.json").read_text())
    assert about["quick"] and about["options"]["classes"] == ["leave it", "love it"]


def test_other_settings_need_another_folder(tmp_path: Path) -> None:
    run(tmp_path, methods=METHODS[:1])
    output = run(tmp_path, "--set", "batch_size=4", methods=METHODS[:1], code=2)
    assert "Give another --out" in output


@pytest.mark.thorough
def test_an_interruption_says_how_to_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(catalogue.McDropout, "fit", interrupted)
    output = run(tmp_path, code=130)
    assert "Repeat the command to continue" in output
    monkeypatch.undo()
    assert "deterministic" in run(tmp_path, methods=METHODS[:2])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--set", "method=bam"), "does not apply"),
        (("--seeds", "0"), "seeds=0"),
        (("--method", "SNPG"), "SNGP"),
        (("--test", "nowhere.csv"), "nowhere.csv"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    assert message in run(tmp_path, *words, methods=METHODS[:1], code=2)
