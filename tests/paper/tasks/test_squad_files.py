"""Reading questions on paragraphs."""

import gzip
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from babn.errors import DataError, MissingExtraError
from babn_paper.tasks.catalogue import find_task

CONTEXT = "Lund is a port. Its mill was built by Ada Brook."


def answer(text: str = "Ada Brook", start: int | None = None) -> dict[str, Any]:
    return {"text": text, "answer_start": CONTEXT.index(text) if start is None else start}


def question(name: str = "q1", **changes: Any) -> dict[str, Any]:
    return {"id": name, "question": " Who built the mill?", "answers": [answer()]} | changes


def official(*questions: Any) -> dict[str, Any]:
    paragraph = {"context": CONTEXT, "qas": list(questions)}
    return {"version": "1.1", "data": [{"title": "Lund", "paragraphs": [paragraph]}]}


def write_official(folder: Path, content: Any, name: str = "dev-v1.1.json") -> Path:
    packed = json.dumps(content).encode()
    (folder / name).write_bytes(gzip.compress(packed) if name.endswith(".gz") else packed)
    return folder / name


def write_lines(
    folder: Path, questions: list[Any], paragraphs: list[Any], start: str = "dev"
) -> tuple[Path, Path]:
    paths = folder / f"{start}.questions.jsonl", folder / f"{start}.paragraphs.jsonl"
    for path, rows in zip(paths, (questions, paragraphs), strict=True):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return paths


def line(name: str = "q1", **changes: Any) -> dict[str, Any]:
    return question(name, title="Lund", para=0) | changes


PARAGRAPH = {"title": "Lund", "para": 0, "context": CONTEXT}


def refused(folder: Path, problem: str, task: str = "squad1.1", part: str = "dev") -> None:
    with pytest.raises(DataError, match=re.escape(problem)):
        find_task(task).read(str(folder), part)


@pytest.mark.parametrize(
    ("version", "part", "answerable", "others"),
    [
        ("1.1", "train", 48, 0),
        ("1.1", "dev", 24, 0),
        ("2.0", "train", 48, 12),
        ("2.0", "dev", 24, 6),
    ],
)
def test_builtin_questions(version: str, part: str, answerable: int, others: int) -> None:
    found = find_task(f"squad{version}").read("builtin", part)
    kinds = [bool(each.answers) for each in found.examples]
    assert (sum(kinds), len(kinds) - sum(kinds)) == (answerable, others)
    assert (found.name, found.origin, len(found.fingerprint)) == (part, "builtin", 16)


def test_tasks_name_themselves() -> None:
    first, second = find_task("squad1.1"), find_task("squad2.0")
    assert (first.title, second.title) == ("SQuAD 1.1", "SQuAD 2.0")
    assert first.scores == second.scores == ("exact", "F1")
    assert (first.max_length, first.test_parts) == (384, ("dev",))


@pytest.mark.parametrize("name", ["dev-v1.1.json", "dev.json", "dev-v1.1.json.gz"])
def test_official_files(tmp_path: Path, name: str) -> None:
    path = write_official(tmp_path, official(question()), name)
    found = find_task("squad1.1").read(str(tmp_path), "dev")
    assert found.origin == str(path)
    assert found.examples[0].text == "Who built the mill?"
    assert found.examples[0].context == CONTEXT
    assert found.examples[0].answers[0].start == CONTEXT.index("Ada")


def test_a_folder_of_all_tasks_has_one_for_each(tmp_path: Path) -> None:
    (tmp_path / "squad2.0").mkdir()
    write_official(tmp_path / "squad2.0", official(question(answers=[])), "dev-v2.0.json")
    assert find_task("squad2.0").read(str(tmp_path), "dev").examples[0].answers == ()


@pytest.mark.parametrize("zipped", [False, True])
def test_lines_are_joined_with_paragraphs(tmp_path: Path, zipped: bool) -> None:
    other = PARAGRAPH | {"para": 1, "context": "Another."}
    paths = write_lines(tmp_path, [line(is_impossible=False)], [other, PARAGRAPH], "dev_part")
    for path in paths if zipped else ():
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    found = find_task("squad1.1").read(str(tmp_path), "dev")
    assert [each.context for each in found.examples] == [CONTEXT]


def test_fingerprints_follow_the_data(tmp_path: Path) -> None:
    task = find_task("squad1.1")
    write_lines(tmp_path, [line()], [PARAGRAPH])
    before = task.read(str(tmp_path), "dev").fingerprint
    assert task.read(str(tmp_path), "dev").fingerprint == before
    write_lines(tmp_path, [line()], [PARAGRAPH | {"context": CONTEXT + " More."}])
    assert task.read(str(tmp_path), "dev").fingerprint != before


def test_whether_a_part_is_there(tmp_path: Path) -> None:
    task = find_task("squad1.1")
    write_official(tmp_path, official(question()))
    assert task.has(str(tmp_path), "dev") and not task.has(str(tmp_path), "train")
    assert task.has("builtin", "train") and not task.has("hub", "test")


def test_ids_may_repeat_in_training_only(tmp_path: Path) -> None:
    write_official(tmp_path, official(question(), question()), "train.json")
    assert len(find_task("squad1.1").read(str(tmp_path), "train").examples) == 2
    path = write_official(tmp_path, official(question(), question()))
    refused(tmp_path, f"{path}: question 'q1': id 'q1' occurs a second time")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"answers": []}, "there is no answer"),
        ({"answers": "Ada"}, "answers is not a list of objects"),
        ({"answers": ["Ada"]}, "answers is not a list of objects"),
        ({"answers": [answer(start=3)]}, "the context has 'd is a po' at answer_start=3"),
        ({"answers": [answer(start=-1)]}, "answer_start=-1 is not an index"),
        ({"answers": [answer() | {"answer_start": "4"}]}, "answer_start='4' is not an index"),
        ({"answers": [{"text": "Ada"}]}, "there is no column 'answer_start'"),
        ({"answers": [{"answer_start": 1}]}, "there is no column 'text'"),
        ({"is_impossible": True}, "is_impossible is True with 1 answers"),
        ({"question": " "}, "column 'question' has no text"),
    ],
)
def test_questions_that_cannot_be_used(
    tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    path = write_official(tmp_path, official(question("q0"), question(**changes)))
    refused(tmp_path, f"{path}: question 'q1': {problem}")
    path.unlink()
    lines, _ = write_lines(tmp_path, [line("q0"), line(**changes)], [PARAGRAPH])
    refused(tmp_path, f"{lines}:2: {problem}")


@pytest.mark.parametrize("column", ["id", "question", "answers", "title", "para"])
def test_missing_columns_of_questions(tmp_path: Path, column: str) -> None:
    row = {name: value for name, value in line().items() if name != column}
    lines, _ = write_lines(tmp_path, [row], [PARAGRAPH])
    refused(tmp_path, f"{lines}:1: there is no column '{column}'")


@pytest.mark.parametrize("column", ["title", "para", "context"])
def test_missing_columns_of_paragraphs(tmp_path: Path, column: str) -> None:
    row = {name: value for name, value in PARAGRAPH.items() if name != column}
    _, paragraphs = write_lines(tmp_path, [line()], [row])
    refused(tmp_path, f"{paragraphs}:1: there is no column '{column}'")


def test_questions_without_a_paragraph(tmp_path: Path) -> None:
    lines, paragraphs = write_lines(tmp_path, [line(), line("q2", para=7)], [PARAGRAPH])
    refused(tmp_path, f"{lines}:2: {paragraphs} has no paragraph ('Lund', '7')")


def test_paragraphs_that_stand_twice(tmp_path: Path) -> None:
    _, paragraphs = write_lines(tmp_path, [line()], [PARAGRAPH, PARAGRAPH])
    refused(tmp_path, f"{paragraphs}:2: title and para ('Lund', '0') occur a second time")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ([], "is not a JSON object"),
        ({"version": "1.1"}, "there is no column 'data'"),
        ({"data": [3]}, "data is not a list of objects"),
        ({"data": [{}]}, "article 0: there is no column 'paragraphs'"),
        ({"data": [{"paragraphs": [{"qas": []}]}]}, "paragraph 0: there is no column 'context'"),
        ({"data": [{"paragraphs": [{"context": "x"}]}]}, "there is no column 'qas'"),
        (official({"question": "x"}), "article 0, paragraph 0: there is no column"),
        (official(), "has no questions"),
    ],
)
def test_official_files_of_another_form(tmp_path: Path, content: Any, problem: str) -> None:
    path = write_official(tmp_path, content)
    with pytest.raises(DataError, match=f"^{re.escape(str(path))}.*{re.escape(problem)}"):
        find_task("squad1.1").read(str(tmp_path), "dev")


def test_damaged_files(tmp_path: Path) -> None:
    path = tmp_path / "dev.json"
    path.write_text("{")
    refused(tmp_path, f"{path} is damaged")
    path.rename(tmp_path / "dev.json.gz")
    refused(tmp_path, f"{tmp_path / 'dev.json.gz'} is damaged")


def test_files_that_are_not_there(tmp_path: Path) -> None:
    refused(tmp_path, "has no file for 'dev'. Put dev-v1.1.json there, or dev.questions.jsonl")
    lines, paragraphs = write_lines(tmp_path, [line()], [PARAGRAPH])
    paragraphs.unlink()
    refused(tmp_path, f"{lines} has no dev.paragraphs.jsonl or dev.paragraphs.jsonl.gz beside it")
    write_official(tmp_path, official(question()))
    refused(tmp_path, "several files for 'dev': ['dev-v1.1.json', 'dev.questions.jsonl']")
    refused(tmp_path / "nowhere", "is not a folder. Give builtin, hub, or a folder")


def test_files_of_the_other_version_are_left_alone(tmp_path: Path) -> None:
    write_official(tmp_path, official(question()), "dev-v2.0.json")
    refused(tmp_path, "has no file for 'dev'")
    refused(tmp_path, "has no file for 'train'", "squad2.0", "train")


@pytest.mark.parametrize("data", ["builtin", "hub"])
def test_parts_that_are_not_there(data: str) -> None:
    with pytest.raises(DataError, match=r"has no part 'test'. Give one of \['train', 'dev'\]"):
        find_task("squad1.1").read(data, "test")


def test_the_hub_needs_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=re.escape("pip install 'babn[data]'")):
        find_task("squad1.1").read("hub", "dev")


def test_rows_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[tuple[str, str]] = []

    class Rows(list):
        _fingerprint = "f1"

    def load_dataset(path: str, name: str | None, split: str) -> Rows:
        requested.append((path, split))
        columns = {"text": ["Ada Brook"], "answer_start": [CONTEXT.index("Ada")]}
        empty: dict[str, list[Any]] = {"text": [], "answer_start": []}
        row = question(context=CONTEXT, answers=columns)
        return Rows([row, question("q2", context=CONTEXT, answers=empty)])

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    found = find_task("squad2.0").read("hub", "dev")
    assert requested == [("rajpurkar/squad_v2", "validation")]
    assert [len(each.answers) for each in found.examples] == [1, 0]
    assert (found.origin, found.fingerprint) == ("hub:rajpurkar/squad_v2", "f1")
    with pytest.raises(DataError, match=re.escape("rajpurkar/squad/validation:2: there is no")):
        find_task("squad1.1").read("hub", "dev")
