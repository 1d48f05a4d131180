"""Generated images of a coloured shape with questions about it, instead of a data set."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import UInt8

from babn_paper.tasks.vqa_data import RawImages, VqaExample, VqaPart

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
