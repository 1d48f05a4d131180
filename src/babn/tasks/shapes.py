"""Made-up images of two shapes with questions about them, in place of a data set."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import UInt8

from babn.tasks.vqa_data import RawImages, VqaExample, VqaPart

SIDE = 64
"""Height and width."""

COUNTS = {"train": 1000, "test": 120}
"""Images of each split."""

COLOURS = {
    "red": (214, 39, 40),
    "green": (44, 160, 44),
    "blue": (31, 80, 200),
    "yellow": (240, 210, 30),
    "black": (20, 20, 20),
    "gray": (128, 128, 128),
}

SHAPES = ("circle", "square", "triangle")


@dataclass(frozen=True)
class Shape:
    """One shape of an image: what it is, and where."""

    name: str
    colour: str
    row: float
    column: float
    radius: float

    def inside(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Which pixels it covers."""
        y, x = rows - self.row, columns - self.column
        if self.name == "circle":
            return y**2 + x**2 <= self.radius**2
        if self.name == "square":
            return np.maximum(abs(y), abs(x)) <= 0.88 * self.radius
        return (y <= 0.8 * self.radius) & (y >= 2 * abs(x) - self.radius)


def generated(split: str) -> VqaPart:
    """Images and questions, the same each time.

    Every image has two shapes side by side, of different forms and colours.

    Args:
        split: `"train"` or `"test"`.
    """
    chance = random.Random(f"babn shapes {split}")
    scenes = [_scene(chance) for _ in range(COUNTS[split])]
    pixels = torch.from_numpy(np.stack([draw(scene, chance) for scene in scenes]))
    examples = [
        VqaExample(question, image, {answer: 1.0}, answer, kind)
        for image, scene in enumerate(scenes)
        for question, answer, kind in _questions(scene, chance)
    ]
    images = RawImages(pixels, tuple(map(str, range(len(scenes)))), halvings=4)
    return VqaPart(split, examples, "generated", f"shapes-1-{split}", images)


def draw(scene: tuple[Shape, ...], chance: random.Random) -> UInt8[np.ndarray, "row column 3"]:
    """The image of a scene, on a ground that is nearly white."""
    ground = [chance.randint(225, 255) for _ in range(3)]
    image = np.empty((SIDE, SIDE, 3), dtype=np.uint8)
    image[:] = ground
    rows, columns = np.mgrid[:SIDE, :SIDE] + 0.5
    for shape in scene:
        image[shape.inside(rows, columns)] = COLOURS[shape.colour]
    return image


def _scene(chance: random.Random) -> tuple[Shape, ...]:
    names, colours = chance.sample(SHAPES, 2), chance.sample(sorted(COLOURS), 2)
    middles = (0.26 * SIDE, 0.74 * SIDE)
    return tuple(
        Shape(
            name,
            colour,
            chance.uniform(0.25, 0.75) * SIDE,
            middle + chance.uniform(-2, 2),
            chance.uniform(9, 13),
        )
        for name, colour, middle in zip(names, colours, middles, strict=True)
    )


def _questions(scene: tuple[Shape, ...], chance: random.Random) -> Iterator[tuple[str, str, str]]:
    """Questions with their answers and kinds."""
    one, other = chance.sample(scene, 2)
    yield f"What color is the {one.name}?", one.colour, "color"
    yield f"What shape is the {other.colour} thing?", other.name, "shape"
    side = chance.choice(("left", "right"))
    there = scene[0] if side == "left" else scene[1]
    yield f"What is on the {side}?", there.name, "shape"
    colour = one.colour if chance.random() < 0.5 else chance.choice(sorted(COLOURS))
    right = "yes" if colour == one.colour else "no"
    yield f"Is the {one.name} {colour}?", right, "yes/no"
    name = chance.choice(SHAPES)
    yield f"Is there a {name}?", _yes(any(s.name == name for s in scene)), "yes/no"


def _yes(truth: bool) -> str:
    return "yes" if truth else "no"
