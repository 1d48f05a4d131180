"""Reads questions on paragraphs from files.

A part is one of:

- `train-v1.1.json` or `train.json`, in the format of the official SQuAD files;
- `train*.questions.jsonl` with one question per line (id, title, para, question, answers with text
  and answer_start, and perhaps is_impossible), beside `train*.paragraphs.jsonl` (title, para,
  context), joined on title and para.

All may be gzipped (`.gz`).
"""

import gzip
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from babn.errors import DataError
from babn.files import parse_json
from babn_paper.data_files import read_data
from babn_paper.tasks.reading import Row, only_file, read_rows

QUESTIONS, PARAGRAPHS = ".questions.jsonl", ".paragraphs.jsonl"

Found = Iterator[tuple[Row, str]]
"""Rows of questions, each with its context."""


@dataclass(frozen=True)
class Answer:
    """An annotated answer.

    Attributes:
        text: Text of the answer.
        start: Index of its first character in the context.
    """

    text: str
    start: int


@dataclass(frozen=True)
class Question:
    """A question on a paragraph.

    Attributes:
        id: Unique identifier.
        text: The question.
        context: The paragraph.
        answers: Annotated answers; empty if the context does not answer the question.
    """

    id: str
    text: str
    context: str
    answers: tuple[Answer, ...]


def candidates(folder: Path, part: str, version: str) -> list[Path]:
    """Returns the files that may hold the questions of a part; there should be one."""
    names = [f"{stem}.json{end}" for stem in (f"{part}-v{version}", part) for end in ("", ".gz")]
    official = [folder / name for name in names]
    lines = (folder.glob(f"{part}*{QUESTIONS}{end}") for end in ("", ".gz"))
    return [path for path in official if path.is_file()] + sorted(chain.from_iterable(lines))


def part_files(folder: Path, part: str, version: str) -> tuple[Path, ...]:
    """Returns the official file of a part, or its files of questions and of paragraphs."""
    remedy = (
        f"Put {part}-v{version}.json there, or {part}{QUESTIONS} and {part}{PARAGRAPHS}, plain or "
        ".gz."
    )
    found = only_file(candidates(folder, part, version), folder, part, remedy)
    return (found, _paragraphs_beside(found)) if QUESTIONS in found.name else (found,)


def _paragraphs_beside(questions: Path) -> Path:
    name = questions.name.removesuffix(".gz").replace(QUESTIONS, PARAGRAPHS)
    for path in (questions.with_name(name), questions.with_name(f"{name}.gz")):
        if path.is_file():
            return path
    raise DataError(f"{questions} has no {name} or {name}.gz beside it. Put the paragraphs there.")


def read_official(path: Path) -> Found:
    """Yields the questions of a file in the official format."""
    for i, article in enumerate(_objects(_content(path), "data", str(path))):
        for j, paragraph in enumerate(_objects(article, "paragraphs", f"{path}: article {i}")):
            place = f"{path}: article {i}, paragraph {j}"
            context = Row(paragraph, place).text("context")
            for question in _objects(paragraph, "qas", place):
                named = f"{path}: question {question['id']!r}" if "id" in question else place
                yield Row(question, named), context


def read_lines(questions: Path, paragraphs: Path) -> Found:
    """Yields the questions of one file, joined with the paragraphs of another."""
    contexts: dict[tuple[str, str], str] = {}
    for row in read_rows(paragraphs):
        key = row.text("title"), str(row.get("para"))
        if key in contexts:
            raise DataError(f"{row.place}: title and para {key} occur a second time. Keep one.")
        contexts[key] = row.text("context")
    for row in read_rows(questions):
        key = row.text("title"), str(row.get("para"))
        if key not in contexts:
            raise DataError(f"{row.place}: {paragraphs} has no paragraph {key}. Add it there.")
        yield row, contexts[key]


def checked(
    found: Iterable[tuple[Row, str]], origin: str, unanswerable: bool, unique: bool = True
) -> list[Question]:
    """Parses and validates questions.

    Args:
        found: Rows of questions with their contexts.
        origin: Where they come from, for error messages.
        unanswerable: Whether there may be questions that the context does not answer.
        unique: Whether ids must be unique.
    """
    questions: list[Question] = []
    ids: set[str] = set()
    for row, context in found:
        question = _question(row, context)
        if unique and question.id in ids:
            raise DataError(f"{row.place}: id {question.id!r} occurs a second time. Keep one.")
        if not question.answers and not unanswerable:
            raise DataError(
                f"{row.place}: there is no answer. Drop the question, or use SQuAD 2.0."
            )
        ids.add(question.id)
        questions.append(question)
    if not questions:
        raise DataError(f"{origin} has no questions. Give at least one.")
    return questions


def _question(row: Row, context: str) -> Question:
    found = _objects(row.values, "answers", row.place)
    impossible = row.values.get("is_impossible", not found)
    if impossible != (not found):
        raise DataError(
            f"{row.place}: is_impossible is {impossible!r} with {len(found)} answers. Correct one."
        )
    answers = tuple(_answer(Row(each, row.place), context) for each in found)
    return Question(row.text("id"), row.text("question").strip(), context, answers)


def _answer(row: Row, context: str) -> Answer:
    text, start = row.text("text"), row.get("answer_start")
    if not isinstance(start, int) or isinstance(start, bool) or start < 0:
        raise DataError(f"{row.place}: answer_start={start!r} is not an index. Count from 0.")
    there = context[start : start + len(text)]
    if there != text:
        raise DataError(
            f"{row.place}: the context has {there!r} at answer_start={start}, not {text!r}. "
            "Correct answer_start."
        )
    return Answer(text, start)


def _content(path: Path) -> dict[str, Any]:
    try:
        content = parse_json(read_data(path))
    except DataError:
        raise
    except (ValueError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} is damaged: {error}. Download it again.") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} is not a JSON object. Give a file in SQuAD's format.")
    return content


def _objects(holder: dict[str, Any], field: str, place: str) -> list[dict[str, Any]]:
    found = Row(holder, place).get(field)
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise DataError(f"{place}: {field} is not a list of objects. Correct it.")
    return found
