"""Extractive question answering: SQuAD 1.1 and 2.0.

Rajpurkar et al. 2016 (https://arxiv.org/abs/1606.05250) and 2018
(https://arxiv.org/abs/1806.03822).
"""

from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import AlbertConfig, AlbertForQuestionAnswering, AutoModelForQuestionAnswering

from babn_paper.pretrained import load_pretrained
from babn_paper.tasks.encoded import Encoded
from babn_paper.tasks.reading import Row, check_part, fingerprint, read_hub, task_folder
from babn_paper.tasks.span_decoding import decode
from babn_paper.tasks.span_predictions import SpanPredictions
from babn_paper.tasks.squad_files import (
    Question,
    candidates,
    checked,
    part_files,
    read_lines,
    read_official,
)
from babn_paper.tasks.squad_windows import DOC_STRIDE, encode_windows
from babn_paper.tasks.task import Outputs, Part, Task, Tokenizer

Version = Literal["1.1", "2.0"]

HUB = {"1.1": "rajpurkar/squad", "2.0": "rajpurkar/squad_v2"}
SPLITS = {"train": "train", "dev": "validation"}


class SpanTask(Task[Question]):
    """Predicts the span of a paragraph that answers a question.

    Args:
        version: Version of SQuAD; 2.0 has questions that the paragraph does not answer.
        doc_stride: Number of tokens that neighbouring windows of a long paragraph share.
    """

    scores = ("exact", "F1")
    max_length = 384

    def __init__(self, version: Version, doc_stride: int = DOC_STRIDE) -> None:
        self.name, self.title = f"squad{version}", f"SQuAD {version}"
        self.version, self.doc_stride = version, doc_stride
        self.unanswerable = version == "2.0"

    def read(self, data: str, part: str) -> Part[Question]:
        """Reads and validates the questions of a part.

        Args:
            data: `"builtin"`, `"hub"`, or a folder with files as `squad_files` describes them.
            part: `"train"` or `"dev"`, or for a folder the beginning of its file names.
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
        """Yields all questions, and each paragraph once."""
        yield from (question.text for question in examples)
        yield from dict.fromkeys(question.context for question in examples)

    def load_model(self, name: str, **settings: Any) -> nn.Module:
        """Loads a pretrained model with a new head for spans."""
        return load_pretrained(AutoModelForQuestionAnswering, name, {}, settings)

    def make_model(self, sizes: Mapping[str, Any]) -> nn.Module:
        """Makes a randomly initialised ALBERT with a head for spans."""
        return AlbertForQuestionAnswering(AlbertConfig(**sizes))

    def encode(
        self, part: Part[Question], tokenizer: Tokenizer, max_length: int, training: bool
    ) -> Encoded:
        """Encodes windows over the paragraphs, in training with the first and last answer token."""
        return encode_windows(part.examples, tokenizer, max_length, self.doc_stride, training)

    def output(self, output: Any) -> Float[Tensor, "row token 2"]:
        """Returns the logits of each token as the first and as the last token of the answer."""
        return torch.stack([output.start_logits, output.end_logits], -1)

    def predictions(
        self, part: Part[Question], encoded: Encoded, outputs: Outputs
    ) -> SpanPredictions:
        """Returns the best spans of each question over its windows."""
        found = decode(part.examples, encoded, outputs, self.unanswerable)
        return SpanPredictions(tuple(found), self.unanswerable)

    def load_predictions(self, folder: Path) -> SpanPredictions:
        """Reads what `SpanPredictions.save` wrote."""
        return SpanPredictions.load(folder)

    def _read_folder(self, data: str, part: str) -> Part[Question]:
        paths = part_files(task_folder(data, self.name), part, self.version)
        found = read_official(paths[0]) if len(paths) == 1 else read_lines(*paths)
        origin = str(paths[0])
        # Predictions are keyed by id. Training needs no ids, and some training sets repeat them.
        questions = checked(found, origin, self.unanswerable, unique=part != "train")
        return Part(part, questions, origin, fingerprint(*paths))

    def _read_builtin(self, part: str) -> Part[Question]:
        check_part("builtin", part, SPLITS)
        with as_file(files("babn_paper.data") / "squad" / f"{part}.json") as path:
            questions = checked(read_official(path), "builtin", unanswerable=True)
            kept = [each for each in questions if each.answers or self.unanswerable]
            return Part(part, kept, "builtin", fingerprint(path))

    def _read_hub(self, part: str) -> Part[Question]:
        check_part("hub", part, SPLITS)
        rows, print_ = read_hub(HUB[self.version], None, SPLITS[part])
        found = [_from_hub(row) for row in rows]
        origin = f"hub:{HUB[self.version]}"
        return Part(part, checked(found, origin, self.unanswerable), origin, print_)


TASKS = {task.name: task for task in (SpanTask("1.1"), SpanTask("2.0"))}


def _from_hub(row: Row) -> tuple[Row, str]:
    """Converts a row to the format of files, with one object for each answer."""
    columns = row.get("answers")
    pairs = zip(columns["text"], columns["answer_start"], strict=True)
    answers = [{"text": text, "answer_start": start} for text, start in pairs]
    return Row(row.values | {"answers": answers}, row.place), row.text("context")
