"""Extractive question answering: SQuAD 1.1 (Rajpurkar et al. 2016) and 2.0 (2018)."""

from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import AlbertConfig, AlbertForQuestionAnswering, AutoModelForQuestionAnswering

from babn.errors import DataError
from babn_paper.pretrained import load_pretrained
from babn_paper.tasks.encoded import Encoded
from babn_paper.tasks.hub import read_hub
from babn_paper.tasks.lines import Row, fingerprint, task_folder
from babn_paper.tasks.span_answers import SpanAnswers
from babn_paper.tasks.span_decoding import decode
from babn_paper.tasks.squad_files import (
    Question,
    candidates,
    checked,
    part_files,
    read_lines,
    read_official,
)
from babn_paper.tasks.squad_windows import DOC_STRIDE, encode_windows
from babn_paper.tasks.task import Asked, Part, Task, Tokenizer

Version = Literal["1.1", "2.0"]

HUB = {"1.1": "rajpurkar/squad", "2.0": "rajpurkar/squad_v2"}
SPLITS = {"train": "train", "dev": "validation"}


class SpanTask(Task[Question]):
    """Marking the answer to a question in a paragraph.

    Args:
        version: Of SQuAD; in 2.0 there are questions that the paragraph does not answer.
        doc_stride: Tokens that neighbouring windows of a long paragraph share.
    """

    scores = ("exact", "F1")
    max_length = 384

    def __init__(self, version: Version, doc_stride: int = DOC_STRIDE) -> None:
        self.name, self.title = f"squad{version}", f"SQuAD {version}"
        self.version, self.doc_stride = version, doc_stride
        self.unanswerable = version == "2.0"

    def read(self, data: str, part: str) -> Part[Question]:
        """The questions of a part, checked.

        Args:
            data: `"builtin"`, `"hub"`, or a folder with files as `squad_files` describes them.
            part: `"train"` or `"dev"`, or for a folder what its files' names begin with.
        """
        if data == "builtin":
            return self._read_builtin(part)
        return self._read_hub(part) if data == "hub" else self._read_folder(data, part)

    def has(self, data: str, part: str) -> bool:
        """Whether the data has a part."""
        if data in ("builtin", "hub"):
            return part in SPLITS
        return bool(candidates(task_folder(data, self.name), part, self.version))

    def texts(self, examples: Sequence[Question]) -> Iterator[str]:
        """All questions and each paragraph once."""
        yield from (question.text for question in examples)
        yield from dict.fromkeys(question.context for question in examples)

    def load_model(self, name: str, **settings: Any) -> nn.Module:
        """The pretrained model of a folder or of the hub, with a fresh head that marks spans."""
        return load_pretrained(AutoModelForQuestionAnswering, name, {}, settings)

    def make_model(self, sizes: Mapping[str, Any]) -> nn.Module:
        """An ALBERT with random weights and a head that marks spans."""
        return AlbertForQuestionAnswering(AlbertConfig(**sizes))

    def encode(
        self, part: Part[Question], tokenizer: Tokenizer, max_length: int, training: bool
    ) -> Encoded:
        """Windows over the paragraphs; in training with the tokens where answers begin and end."""
        return encode_windows(part.examples, tokenizer, max_length, self.doc_stride, training)

    def output(self, output: Any) -> Float[Tensor, "row token 2"]:
        """The logits of each token as the first and as the last one of the answer."""
        return torch.stack([output.start_logits, output.end_logits], -1)

    def answers(self, part: Part[Question], encoded: Encoded, asked: Asked) -> SpanAnswers:
        """The best spans of each question over its windows."""
        return SpanAnswers(
            tuple(decode(part.examples, encoded, asked, self.unanswerable)), self.unanswerable
        )

    def load_answers(self, folder: Path) -> SpanAnswers:
        """Reads what `SpanAnswers.save` wrote."""
        return SpanAnswers.load(folder)

    def _read_folder(self, data: str, part: str) -> Part[Question]:
        paths = part_files(task_folder(data, self.name), part, self.version)
        found = read_official(paths[0]) if len(paths) == 1 else read_lines(*paths)
        origin = str(paths[0])
        # Ids tell answers apart, of which there are none in training; some sets repeat them there.
        questions = checked(found, origin, self.unanswerable, unique=part != "train")
        return Part(part, questions, origin, fingerprint(*paths))

    def _read_builtin(self, part: str) -> Part[Question]:
        _check_part(part, "builtin")
        with as_file(files("babn_paper.data") / "squad" / f"{part}.json") as path:
            questions = checked(read_official(path), "builtin", unanswerable=True)
            kept = [each for each in questions if each.answers or self.unanswerable]
            return Part(part, kept, "builtin", fingerprint(path))

    def _read_hub(self, part: str) -> Part[Question]:
        _check_part(part, "hub")
        rows, print_ = read_hub(HUB[self.version], None, SPLITS[part])
        found = [_of_hub(row) for row in rows]
        origin = f"hub:{HUB[self.version]}"
        return Part(part, checked(found, origin, self.unanswerable), origin, print_)


TASKS = {task.name: task for task in (SpanTask("1.1"), SpanTask("2.0"))}


def _check_part(part: str, data: str) -> None:
    if part not in SPLITS:
        raise DataError(f"data={data!r} has no part {part!r}. Give one of {list(SPLITS)}.")


def _of_hub(row: Row) -> tuple[Row, str]:
    """A row as files have it: one object for each answer."""
    columns = row.get("answers")
    pairs = zip(columns["text"], columns["answer_start"], strict=True)
    answers = [{"text": text, "answer_start": start} for text, start in pairs]
    return Row(row.values | {"answers": answers}, row.place), row.text("context")
