"""VQA-v2 (Goyal et al. 2017, https://arxiv.org/abs/1612.00837) with features of image regions.

A folder holds, for train2014 and val2014,

    v2_OpenEnded_mscoco_train2014_questions.json
    v2_mscoco_train2014_annotations.json
    features/train2014/COCO_train2014_000000000009.jpg.npz

or, instead of the two JSON files, `train.jsonl` and `val.jsonl` with the columns image_id,
question, answers, answer, answer_type and optionally question_type. `features` may also hold the
files of both splits. Images in `images/val2014` are used for displaying attention only. As in the
paper, models are trained on train2014 and tested on val2014, since the test set has no public
answers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from babn.errors import DataError
from babn.files import parse_json
from babn_paper.tasks.reading import Row, find_file, find_files, fingerprint, read_rows, task_folder
from babn_paper.tasks.vqa_data import VqaExample, VqaPart
from babn_paper.tasks.vqa_features import FeatureFiles
from babn_paper.tasks.vqa_sources import generated
from babn_paper.tasks.vqa_text import normalized, normalized_scores, soft_scores

YEARS = {"train": "train2014", "test": "val2014"}
"""The official split of each part."""

ANSWERS = "answer_dict.json"
"""Optional file with the possible answers."""


@dataclass(frozen=True)
class Question:
    """A question with the annotators' answers."""

    image: int
    text: str
    answers: list[str]
    best: str
    kind: str
    question_type: str


def read_vqa2(data: str, split: str) -> VqaPart:
    """Reads the questions of a split, with the features of their images."""
    if data in ("builtin", "generated"):
        return generated(split)
    folder = task_folder(data, "vqa2")
    questions, paths = _questions(folder, split)
    names = tuple(f"COCO_{YEARS[split]}_{image:012d}" for image in _images(questions))
    year = YEARS[split]
    files = FeatureFiles(_features(folder, year), names, _pictures(folder, year))
    files.check()
    numbers = {image: number for number, image in enumerate(_images(questions))}
    # The list of possible answers is normalised, and so are the labels of training.
    score = normalized_scores if split == "train" else soft_scores
    examples = [
        VqaExample(
            q.text, numbers[q.image], score(q.answers), normalized(q.best), q.kind, q.question_type
        )
        for q in questions
    ]
    answers = [path for path in [folder / ANSWERS] if path.is_file()]
    print_ = f"{fingerprint(*paths, *answers)}, {files.fingerprint()}"
    return VqaPart(split, examples, str(paths[0]), print_, files)


def read_answers(data: str) -> list[str] | None:
    """Returns the normalised answers of `answer_dict.json`; `None` if the folder has no such file.

    The file is that of MCAN, a dictionary from answers to indices and its inverse, or a list.
    """
    folders = (Path(data) / "vqa2", Path(data))
    path = next((f for f in folders if f.is_dir()), Path(data)) / ANSWERS
    if not path.is_file():
        return None
    try:
        found = parse_json(path.read_bytes())
        if isinstance(found[0], dict):
            found = sorted(found[0], key=found[0].__getitem__)
        return [*dict.fromkeys(normalized(str(answer)) for answer in found)]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise DataError(f"{path} is not a list of answers: {error!r}. Correct it.") from error


def _questions(folder: Path, split: str) -> tuple[list[Question], tuple[Path, ...]]:
    names = (split,) if split == "train" else ("val", "valid", "dev", "test")
    if find_files(folder, split, names=names):
        path = find_file(folder, split, names=names)
        return [_question(row) for row in read_rows(path)], (path,)
    year = YEARS[split]
    questions = folder / f"v2_OpenEnded_mscoco_{year}_questions.json"
    annotations = folder / f"v2_mscoco_{year}_annotations.json"
    for path in (questions, annotations):
        if not path.is_file():
            raise DataError(f"{folder} has no {path.name}. Put the official file there.")
    return list(_official(questions, annotations)), (questions, annotations)


def _official(questions: Path, annotations: Path) -> Iterator[Question]:
    rows = _rows(questions, "questions")
    texts = {str(row.get("question_id")): row.text("question") for row in rows}
    for row in _rows(annotations, "annotations"):
        number = str(row.get("question_id"))
        if number not in texts:
            raise DataError(
                f"{questions} has no question {number}, which {annotations.name} annotates. "
                "Download both files again."
            )
        given = row.get("answers")
        if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
            raise DataError(f"{row.place}: answers is not a list of objects. Download it again.")
        yield _question(
            Row(
                {
                    **row.values,
                    "question": texts[number],
                    "answers": [each.get("answer") for each in given],
                    "answer": row.get("multiple_choice_answer"),
                },
                row.place,
            )
        )


def _rows(path: Path, name: str) -> Iterator[Row]:
    """Yields the objects of an official file as rows."""
    for number, values in enumerate(_list(path, name)):
        yield Row(values, f"{path}: {name}[{number}]")


def _list(path: Path, name: str) -> list[dict[str, Any]]:
    try:
        found = parse_json(path.read_bytes())[name]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is not a file of {name}: {error!r}. Download it again.") from error
    if not found or not isinstance(found, list) or not all(isinstance(e, dict) for e in found):
        raise DataError(f"{path} has no list of {name}. Download it again.")
    return found


def _question(row: Row) -> Question:
    answers = row.get("answers")
    if not isinstance(answers, list) or not all(isinstance(each, str) for each in answers):
        raise DataError(f"{row.place}: answers={answers!r} is not a list of texts.")
    if not answers:
        raise DataError(f"{row.place}: answers is empty. Give the annotators' answers.")
    return Question(
        _number(row, "image_id"),
        row.text("question"),
        answers,
        row.text("answer"),
        row.text("answer_type"),
        str(row.values.get("question_type") or ""),
    )


def _number(row: Row, column: str) -> int:
    value = str(row.get(column))
    if not value.isascii() or not value.isdigit() or len(value) > 12:
        raise DataError(f"{row.place}: {column}={value[:20]!r} is not the number of an image.")
    return int(value)


def _images(questions: list[Question]) -> list[int]:
    return sorted({question.image for question in questions})


def _pictures(folder: Path, year: str) -> Path | None:
    """Returns the folder of the images, for display; `None` if there is none."""
    path = folder / "images" / year
    return path if path.is_dir() else None


def _features(folder: Path, year: str) -> Path:
    """Returns the features of a split, or of both splits."""
    for path in (folder / "features" / year, folder / "features"):
        if path.is_dir():
            return path
    raise DataError(f"{folder} has no features/{year}. Put one .npz for each image there.")
