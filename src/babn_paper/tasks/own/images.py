"""Your own questions about images."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NoReturn

from babn.errors import ConfigError, DataError
from babn_paper.tasks.own.files import OwnFiles
from babn_paper.tasks.own.texts import read_label
from babn_paper.tasks.reading import Row
from babn_paper.tasks.vqa import VqaTask
from babn_paper.tasks.vqa_data import RawImages, VqaExample, VqaPart
from babn_paper.tasks.vqa_images import ENDINGS, read_images

HALVINGS = 4
"""Number of times that the model halves height and width: 96 pixels give 6 by 6 regions."""


def _unused(data: str, split: str) -> NoReturn:
    raise AssertionError("options name the files")


@dataclass(frozen=True)
class OwnImages(OwnFiles, VqaTask):
    """Questions about images of a folder; the possible answers are those of the training data.

    Attributes:
        text: Column of the question.
        label: Column of the answer.
        image: Column of the image's name, with or without ending.
        images: Folder or tar file with the images.
        size: Height and width that images are resized to.
    """

    text: str = "question"
    label: str = "answer"
    image: str = "image"
    images: str = ""
    size: int = 96

    further_options: ClassVar[tuple[str, ...]] = ("text", "label", "image", "images", "size")

    def check_ready(self) -> None:
        """Validates the options that every run needs."""
        super().check_ready()
        if not self.images:
            raise ConfigError("options.images is empty. Name the folder of images with --images.")
        if self.size < 2**HALVINGS:
            raise ConfigError(
                f"options.size={self.size} is too small. Give at least {2**HALVINGS} pixels."
            )

    def column_options(self) -> tuple[str, ...]:
        """Returns the options that name columns."""
        return ("image", "text", "label")

    def has(self, data: str, part: str) -> bool:
        """Whether the data has the part."""
        return part in self.tested_parts(data)

    def read(self, data: str, part: str) -> VqaPart:
        """Reads the questions of a part, with their images."""
        rows, origin, print_ = self.rows(data, part)
        names = tuple(sorted({self._name(row) for row in rows}))
        numbers = {name: number for number, name in enumerate(names)}
        pixels, digest = read_images(Path(self.images), names, (self.size, self.size))
        examples = [self._example(row, numbers[self._name(row)]) for row in rows]
        source = RawImages(pixels, names, HALVINGS)
        return VqaPart(part, examples, origin, f"{print_}-{digest}", source)

    def _example(self, row: Row, image: int) -> VqaExample:
        answer = read_label(row, self.label)
        return VqaExample(row.text(self.text), image, {answer: 1.0}, answer, _kind(answer))

    def _name(self, row: Row) -> str:
        """Returns the name of a row's image without its ending."""
        name = str(row.get(self.image) or "").strip()
        if not name:
            raise DataError(
                f"{row.place}: column {self.image!r} names no image. Fill it or drop the line."
            )
        return Path(name).stem if Path(name).suffix.lower() in ENDINGS else name


def _kind(answer: str) -> str:
    """Returns the kind of a question, by its answer."""
    if answer.lower() in ("yes", "no"):
        return "yes/no"
    return "number" if answer.isdigit() else "other"


TASKS = {
    "vqa": OwnImages(
        "vqa", "questions about images", _unused, test_parts=("dev", "test"), max_length=24
    )
}
"""The task by name."""
