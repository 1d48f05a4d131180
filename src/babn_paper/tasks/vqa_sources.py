"""Small data sets of visual questions: easy-VQA, DAQUAR, and generated images of shapes."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8

from babn.errors import DataError
from babn.files import parse_json
from babn_paper.tasks.reading import Row, find_file, fingerprint, read_rows, task_folder
from babn_paper.tasks.vqa_data import RawImages, VqaExample, VqaPart
from babn_paper.tasks.vqa_features import FeatureFiles
from babn_paper.tasks.vqa_images import read_arrays, read_images

SIDE = 32
"""Height and width of an image."""

COUNTS = {"train": 1000, "test": 80}
"""Number of images of each split."""

COLOURS = {
    "red": (214, 39, 40),
    "green": (44, 160, 44),
    "blue": (31, 80, 200),
    "yellow": (240, 210, 30),
}

SHAPES = ("circle", "square", "triangle")


@dataclass(frozen=True)
class Shape:
    """The shape in an image: its form, colour and position."""

    name: str
    colour: str
    row: float
    column: float
    radius: float

    def inside(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Returns a mask of the pixels that it covers."""
        y, x = rows - self.row, columns - self.column
        if self.name == "circle":
            return y**2 + x**2 <= self.radius**2
        if self.name == "square":
            return np.maximum(abs(y), abs(x)) <= 0.88 * self.radius
        return (y <= 0.8 * self.radius) & (y >= 2 * abs(x) - self.radius)


def generated(split: str) -> VqaPart:
    """Generates images and questions, with a fixed seed.

    Every image has one shape, in its left or right half.

    Args:
        split: `"train"` or `"test"`.
    """
    chance = random.Random(f"babn shapes {split}")
    shapes = [_shape(chance) for _ in range(COUNTS[split])]
    pixels = torch.from_numpy(np.stack([draw(shape, chance) for shape in shapes]))
    examples = [
        VqaExample(question, image, {answer: 1.0}, answer, kind)
        for image, shape in enumerate(shapes)
        for question, answer, kind in _questions(shape, chance)
    ]
    images = RawImages(pixels, tuple(map(str, range(len(shapes)))), halvings=3)
    return VqaPart(split, examples, "generated", f"shapes-5-{split}", images)


def draw(shape: Shape, chance: random.Random) -> UInt8[np.ndarray, "row column 3"]:
    """Draws a shape on an almost white background."""
    image = np.empty((SIDE, SIDE, 3), dtype=np.uint8)
    image[:] = [chance.randint(225, 255) for _ in range(3)]
    rows, columns = np.mgrid[:SIDE, :SIDE] + 0.5
    image[shape.inside(rows, columns)] = COLOURS[shape.colour]
    return image


def _shape(chance: random.Random) -> Shape:
    return Shape(
        chance.choice(SHAPES),
        chance.choice(sorted(COLOURS)),
        chance.uniform(0.25, 0.75) * SIDE,
        chance.choice((0.28, 0.72)) * SIDE + chance.uniform(-1.5, 1.5),
        chance.uniform(6, 8),
    )


def _questions(shape: Shape, chance: random.Random) -> Iterator[tuple[str, str, str]]:
    """Yields questions with their answers and kinds."""
    yield f"What color is the {chance.choice(('shape', shape.name))}?", shape.colour, "color"
    yield f"What shape is {chance.choice(('this', shape.colour))}?", shape.name, "shape"
    if chance.random() < 0.5:
        yield "Which shape is there?", shape.name, "shape"
    else:
        side = "left" if shape.column < SIDE / 2 else "right"
        yield f"On which side is the {chance.choice(('shape', shape.name))}?", side, "side"
    yield _yes_no_question(shape, chance)


def _yes_no_question(shape: Shape, chance: random.Random) -> tuple[str, str, str]:
    """Returns a yes/no question about the shape or its colour."""
    if chance.random() < 0.5:
        name = shape.name if chance.random() < 0.5 else chance.choice(SHAPES)
        return f"Is there a {name}?", _yes(name == shape.name), "yes/no"
    colour = shape.colour if chance.random() < 0.5 else chance.choice(sorted(COLOURS))
    return f"Is the shape {colour}?", _yes(colour == shape.colour), "yes/no"


def _yes(truth: bool) -> str:
    return "yes" if truth else "no"


Reader = Callable[[str, str], VqaPart]
"""Reads `"train"` or `"test"` from a folder, or from `"builtin"` or `"generated"` data."""

EASY_SIZE = (64, 64)

DAQUAR_SIZE = (96, 128)
"""Height and width that photographs are resized to; four halvings make 6 by 8 regions."""


def read_easy(data: str, split: str) -> VqaPart:
    """Reads easy-VQA (Zhou 2019, https://github.com/vzhou842/easy-VQA): images of one shape.

    A folder has `train_questions.tsv` and `train_images.npz`, and the same for `test`; or the
    layout of the package `easy-vqa`, with `train/questions.json` and `train/images`. The built-in
    data is that of the package if it is installed, and otherwise generated.
    """
    if data == "generated" or (data == "builtin" and easy_package() is None):
        return generated(split)
    folder = easy_package() if data == "builtin" else task_folder(data, "easy_vqa")
    assert folder is not None
    if (folder / split / "questions.json").is_file():
        return _read_easy_package(folder / split, split)
    path = find_file(folder, split, names=(f"{split}_questions",))
    arrays = folder / f"{split}_images.npz"
    if not arrays.is_file():
        raise DataError(f"{folder} has no {arrays.name}. Put the images there.")
    names, pixels = read_arrays(arrays)
    rows = [(row.text("question"), row.text("answer"), _image(row)) for row in read_rows(path)]
    examples = _examples(rows, names, easy_kind, str(path))
    return VqaPart(split, examples, str(path), fingerprint(path, arrays), RawImages(pixels, names))


def easy_package() -> Path | None:
    """Returns the data folder of the installed package `easy-vqa`, without importing it."""
    spec = find_spec("easy_vqa")
    places = spec.submodule_search_locations if spec else None
    folder = Path(places[0]) / "data" if places else None
    return folder if folder and folder.is_dir() else None


def easy_kind(question: str, answer: str) -> str:
    """Returns the kind of a question of easy-VQA."""
    if answer in ("yes", "no"):
        return "yes/no"
    return "color" if "color" in question.lower() else "shape"


def _read_easy_package(folder: Path, split: str) -> VqaPart:
    path = folder / "questions.json"
    try:
        rows = [(q, a, str(i)) for q, a, i in parse_json(path.read_bytes())]
    except (ValueError, TypeError) as error:
        raise DataError(f"{path} is damaged: {error}. Download it again.") from error
    if not rows or not all(isinstance(text, str) for row in rows for text in row):
        raise DataError(
            f"{path} is damaged: a question or an answer is not text. Download it again."
        )
    names = tuple(sorted({image for _, _, image in rows}, key=lambda n: (len(n), n)))
    pixels, digest = read_images(folder / "images", names, EASY_SIZE)
    examples = _examples(rows, names, easy_kind, str(path))
    print_ = f"{fingerprint(path)}, {digest}"
    return VqaPart(split, examples, str(path), print_, RawImages(pixels, names))


def read_daquar(data: str, split: str) -> VqaPart:
    """Reads DAQUAR (Malinowski & Fritz 2014, https://arxiv.org/abs/1410.0210): photos of rooms.

    A folder has `train.jsonl` and `test.jsonl` with the columns image, question and answer, and the
    images in a folder `images` or in one tar file. If it has a folder `features`, as written by
    `babn features`, the model gets these instead of raw images. An answer that lists several things
    must match as a whole, in any order.
    """
    if data in ("builtin", "generated"):
        return generated(split)
    folder = task_folder(data, "daquar")
    path = find_file(folder, split)
    rows = [(row.text("question"), _listed(row), _image(row)) for row in read_rows(path)]
    names = tuple(sorted({image for _, _, image in rows}))
    examples = _examples(rows, names, daquar_kind, str(path))
    if (folder / "features").is_dir():
        files = FeatureFiles(folder / "features", names, _images_of(folder, needed=False))
        files.check()
        origin, print_ = f"{path}, {files.origin}", f"{fingerprint(path)}, {files.fingerprint()}"
        return VqaPart(split, examples, origin, print_, files)
    source = _images_of(folder)
    assert source is not None
    pixels, digest = read_images(source, names, DAQUAR_SIZE)
    images = RawImages(pixels, names, halvings=4)
    return VqaPart(split, examples, str(path), f"{fingerprint(path)}, {digest}", images)


def daquar_kind(question: str, answer: str) -> str:
    """Returns the kind of a question of DAQUAR."""
    if "," in answer:
        return "several"
    if answer.isdigit():
        return "number"
    return "color" if "colo" in question.lower() else "object"


def _listed(row: Row) -> str:
    parts = sorted({part.strip() for part in row.text("answer").split(",")} - {""})
    return ", ".join(parts)


def _image(row: Row) -> str:
    name = str(row.get("image")).strip()
    if not name:
        raise DataError(f"{row.place}: column 'image' is empty. Name the image.")
    return name


def _images_of(folder: Path, needed: bool = True) -> Path | None:
    if (folder / "images").is_dir():
        return folder / "images"
    found = sorted(folder.glob("images*.tar"))
    if len(found) != 1 and not needed:
        return None
    if len(found) != 1:
        raise DataError(
            f"{folder} has {len(found)} files images*.tar and no folder images. Put the images "
            "into one of them."
        )
    return found[0]


def _examples(
    rows: Sequence[tuple[str, str, str]],
    names: Sequence[str],
    kind: Callable[[str, str], str],
    origin: str,
) -> list[VqaExample]:
    numbers = {name: number for number, name in enumerate(names)}
    if lost := next((image for _, _, image in rows if image not in numbers), None):
        raise DataError(f"{origin} refers to image {lost!r}, which is missing. Add the image.")
    return [
        VqaExample(question, numbers[image], {answer: 1.0}, answer, kind(question, answer))
        for question, answer, image in rows
    ]
