"""Reading the tasks of GLUE from folders, and what is refused."""

import json
from pathlib import Path

import pytest
import torch

from babn.errors import DataError
from babn_paper.tasks.glue import COLA, MNLI, MRPC, QQP, RTE, STSB, TASKS, GlueTask

TITLES = ["MRPC", "CoLA", "RTE", "MNLI", "QNLI", "QQP", "SST-2", "STS-B"]
SCORES = {"cola": ("Matthews",), "stsb": ("Pearson",)}


def table(path: Path, *lines: str) -> Path:
    """Writes a table whose columns are separated by bars here."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line.replace("|", "\t") + "\n" for line in lines))
    return path


def test_the_eight_tasks_and_their_scores() -> None:
    assert [task.title for task in TASKS.values()] == TITLES
    assert all(task.scores == SCORES.get(name, ("accuracy",)) for name, task in TASKS.items())


def test_labels_by_name_and_by_number(tmp_path: Path) -> None:
    header, *rows = "label|premise|hypothesis", "neutral|a|b", "2|a|b", "entailment|a|b"
    path = table(tmp_path / "mnli" / "train.tsv", header, *rows)
    part = MNLI.read(str(tmp_path), "train")
    assert [each.label for each in part.examples] == [1, 2, 0]
    assert part.examples[0].texts == ("a", "b") and part.origin == str(path)


def test_objects_may_hold_numbers(tmp_path: Path) -> None:
    rows = [{"sentence1": "a", "sentence2": "b", "label": value} for value in (1, 0)]
    (tmp_path / "dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [each.label for each in MRPC.read(str(tmp_path), "dev").examples] == [1, 0]


@pytest.mark.parametrize("column", ["label", "score"])
def test_similarity_is_a_number(tmp_path: Path, column: str) -> None:
    table(tmp_path / "dev.tsv", f"sentence1|sentence2|{column}", "a|b|3.75", "a|c|0")
    part = STSB.read(str(tmp_path), "dev")
    assert STSB.target.tensor([each.label for each in part.examples]).tolist() == [3.75, 0]


@pytest.mark.parametrize(
    ("task", "lines", "message"),
    [
        (RTE, ("sentence1|sentence2|label", "a|b|0", "a|b|maybe"), r"dev\.tsv:3: label='maybe'"),
        (RTE, ("sentence1|sentence2|label", "a|b|2"), r"dev\.tsv:2: label='2' is not a class"),
        (RTE, ("sentence1|sentence2|label", "a|b|-1"), r"dev\.tsv:2: .* marks a missing label"),
        (RTE, ("sentence1|sentence2", "a|b"), r"dev\.tsv:2: there is no column 'label'"),
        (RTE, ("sentence1|label", "a|0"), r"dev\.tsv:2: there is no column 'sentence2'"),
        (RTE, ("sentence1|sentence2|label",), "has no rows"),
        (COLA, ("sentence|label", " |1"), r"dev\.tsv:2: sentence hold no text"),
        (STSB, ("sentence1|sentence2|label", "a|b|5.1"), r"dev\.tsv:2: label='5\.1'.* from 0 to 5"),
        (STSB, ("sentence1|sentence2|label", "a|b|nan"), r"dev\.tsv:2: label='nan'"),
        (STSB, ("sentence1|sentence2|score", "a|b|high"), r"dev\.tsv:2: score='high'"),
        (STSB, ("sentence1|sentence2", "a|b"), r"no column 'label' or 'score'"),
    ],
)
def test_wrong_rows_are_refused_with_their_place(
    tmp_path: Path, task: GlueTask, lines: tuple[str, ...], message: str
) -> None:
    table(tmp_path / "dev.tsv", *lines)
    with pytest.raises(DataError, match=message):
        task.read(str(tmp_path), "dev")


def test_one_of_two_texts_may_be_empty(tmp_path: Path) -> None:
    table(tmp_path / "dev.tsv", "question1|question2|label", "what|| 0")
    assert QQP.read(str(tmp_path), "dev").examples[0].texts == ("what", "")
    (tmp_path / "dev.tsv").unlink()
    (tmp_path / "dev.jsonl").write_text('{"question1": "a", "question2": null, "label": 0}\n')
    with pytest.raises(DataError, match="hold no text"):
        QQP.read(str(tmp_path), "dev")


def test_matched_and_mismatched_are_told_apart(tmp_path: Path) -> None:
    lines = "premise|hypothesis|label", "a|b|0"
    table(tmp_path / "dev_mismatched.tsv", *lines)
    assert MNLI.has(str(tmp_path), "dev-mismatched") and not MNLI.has(str(tmp_path), "dev")
    with pytest.raises(DataError, match=r"no file for 'dev'\. Put dev_matched\.tsv"):
        MNLI.read(str(tmp_path), "dev")
    table(tmp_path / "dev_matched.tsv", *lines)
    assert MNLI.read(str(tmp_path), "dev").origin.endswith("dev_matched.tsv")
    assert MNLI.read(str(tmp_path), "dev-mismatched").origin.endswith("dev_mismatched.tsv")


def test_fingerprints_follow_the_data(tmp_path: Path) -> None:
    table(tmp_path / "dev.tsv", "sentence|label", "a|1")
    first = COLA.read(str(tmp_path), "dev").fingerprint
    assert COLA.read(str(tmp_path), "dev").fingerprint == first
    table(tmp_path / "dev.tsv", "sentence|label", "a|0")
    assert COLA.read(str(tmp_path), "dev").fingerprint != first


def test_labels_have_the_type_that_the_loss_needs() -> None:
    assert RTE.target.tensor([0, 1]).dtype == torch.int64
    assert STSB.target.tensor([0, 1]).dtype == torch.float32
