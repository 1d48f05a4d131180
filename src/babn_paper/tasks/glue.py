"""The 8 tasks of GLUE (Wang et al. 2019, https://arxiv.org/abs/1804.07461) that the paper uses.

Columns and the order of classes are those of `nyu-mll/glue` on the hub.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from torch import nn

from babn.errors import DataError
from babn_paper.tasks.reading import (
    HUB_SPLITS,
    Row,
    find_file,
    find_files,
    fingerprint,
    read_hub,
    read_rows,
    task_folder,
)
from babn_paper.tasks.targets import Classes, Number, Target
from babn_paper.tasks.task import Part, Task
from babn_paper.tasks.text_task import TextExample, TextTask, read_texts

HUB = "nyu-mll/glue"


@dataclass(frozen=True)
class GlueTask(TextTask):
    """A task of GLUE.

    Attributes:
        name: Name in configurations, folders and on the hub.
        title: Name in tables.
        columns: Columns of the text or of the two texts.
        target: The labels.
        scores: Names of the scores in the paper's table.
        further: Names of the other official scores.
        splits: Names of the parts on the hub.
        names: Possible file names of a part, if not the part's name.
        test_parts: Parts that a model is evaluated on after training.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    target: Target
    scores: tuple[str, ...] = ("accuracy",)
    further: tuple[str, ...] = ()
    splits: Mapping[str, str] = field(default_factory=lambda: HUB_SPLITS)
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    test_parts: tuple[str, ...] = ("dev",)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of all official scores."""
        return self.scores + self.further

    def has(self, data: str, part: str) -> bool:
        """Whether the hub or the folder has the part."""
        if data == "hub":
            return part in self.splits
        return bool(find_files(self._folder(data), part, self.names.get(part, ())))

    def read(self, data: str, part: str) -> Part[TextExample]:
        """Reads the examples of a part, each with its texts and a label."""
        rows, origin, print_ = self.rows(data, part)
        return Part(part, [self.example(row) for row in rows], origin, print_)

    def rows(self, data: str, part: str) -> tuple[list[Row], str, str]:
        """Returns the rows of a part, their origin and their fingerprint."""
        if data == "hub":
            return self._read_hub(part)
        path = find_file(self._folder(data), part, self.names.get(part, ()))
        return read_rows(path), data if data == "builtin" else str(path), fingerprint(path)

    def example(self, row: Row) -> TextExample:
        """Reads and validates the example of a row."""
        return TextExample(read_texts(row, self.columns), self.target.read(row))

    def make_pair_model(self, config: type[Any], sizes: Mapping[str, Any]) -> nn.Module:
        """Makes a randomly initialised model of `babn_paper.models`, for tasks of two texts."""
        if len(self.columns) != 2:
            return Task.make_pair_model(self, config, sizes)
        return super().make_pair_model(config, sizes)

    def _folder(self, data: str) -> Path:
        own = files("babn_paper.data").joinpath("glue")
        return task_folder(str(own) if data == "builtin" else data, self.name)

    def _read_hub(self, part: str) -> tuple[list[Row], str, str]:
        if part not in self.splits:
            raise DataError(
                f"part={part!r} of {self.name!r} is not on the hub. Give one of "
                f"{list(self.splits)}."
            )
        rows, print_ = read_hub(HUB, self.name, self.splits[part])
        return rows, f"hub:{HUB}", print_


SENTENCES = ("sentence1", "sentence2")
ENTAILMENT = Classes(("entailment", "not_entailment"))

MRPC = GlueTask(
    "mrpc", "MRPC", SENTENCES, Classes(("not_equivalent", "equivalent")), further=("F1",)
)

COLA = GlueTask(
    "cola",
    "CoLA",
    ("sentence",),
    Classes(("unacceptable", "acceptable")),
    scores=("Matthews",),
    further=("accuracy",),
)

RTE = GlueTask("rte", "RTE", SENTENCES, ENTAILMENT)

MNLI = GlueTask(
    "mnli",
    "MNLI",
    ("premise", "hypothesis"),
    Classes(("entailment", "neutral", "contradiction")),
    splits={
        "train": "train",
        "dev": "validation_matched",
        "dev-mismatched": "validation_mismatched",
    },
    names={"dev": ("dev_matched", "dev"), "dev-mismatched": ("dev_mismatched", "dev-mismatched")},
    test_parts=("dev", "dev-mismatched"),
)

QNLI = GlueTask("qnli", "QNLI", ("question", "sentence"), ENTAILMENT)

QQP = GlueTask(
    "qqp",
    "QQP",
    ("question1", "question2"),
    Classes(("not_duplicate", "duplicate")),
    further=("F1",),
)

SST2 = GlueTask("sst2", "SST-2", ("sentence",), Classes(("negative", "positive")))

STSB = GlueTask(
    "stsb", "STS-B", SENTENCES, Number(0, 5), scores=("Pearson",), further=("Spearman", "MSE")
)

TASKS = {task.name: task for task in (MRPC, COLA, RTE, MNLI, QNLI, QQP, SST2, STSB)}
"""The tasks by name, in the order of the paper's Table 1."""
