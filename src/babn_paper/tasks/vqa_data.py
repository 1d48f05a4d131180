"""Questions about images, and where the images come from."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8
from torch import Tensor

from babn_paper.tasks.lookups import Lookup, Pixels
from babn_paper.tasks.task import Part


@dataclass(frozen=True, slots=True)
class VqaExample:
    """A question about an image.

    Attributes:
        question: As people wrote it.
        image: Which of the part's images.
        scores: How right each answer is that somebody gave, from 0 to 1.
        best: The answer that most people gave.
        kind: What sort of question it is, for scores by kind.
        question_type: How it begins, as VQA-v2 sorts questions; empty if nobody says.
    """

    question: str
    image: int
    scores: Mapping[str, float]
    best: str
    kind: str
    question_type: str = ""


class ImageSource(ABC):
    """Images, or features of their regions.

    Attributes:
        names: What each image is called.
    """

    names: Sequence[str]

    @abstractmethod
    def model_fields(self, sizes: Mapping[str, Any]) -> dict[str, Any]:
        """Fields of a model's configuration that follow from what it is given.

        Args:
            sizes: The fields that are chosen already.
        """

    @abstractmethod
    def lookup(self, index: Tensor, regions: int) -> Lookup:
        """Arguments of the model for examples.

        Args:
            index: The image of each example.
            regions: The most regions of an image.
        """

    def regions(self, config: Any) -> int:
        """The most regions that a model has of an image."""
        rows, columns = config.grid
        return int(rows * columns)

    def picture(self, image: int) -> UInt8[np.ndarray, "height width 3"] | None:
        """An image to look at, if there is one."""
        return None

    def boxes(self, image: int) -> Float[np.ndarray, "region 4"] | None:
        """Corners of an image's regions, if they are not a grid."""
        return None


@dataclass(frozen=True)
class RawImages(ImageSource):
    """Images of one size, of which a model makes a grid of regions.

    Attributes:
        pixels: Their colours.
        names: What each is called.
        halvings: How often height and width are halved on the way to the grid.
    """

    pixels: UInt8[Tensor, "image height width 3"]
    names: Sequence[str]
    halvings: int = 3

    def model_fields(self, sizes: Mapping[str, Any]) -> dict[str, Any]:
        """Convolutions whose widths double up to the size of the other layers."""
        if "stem_channels" in sizes:
            return {"image_size": list(self.pixels.shape[1:3])}
        widest = int(sizes["hidden_size"])
        channels = [max(16, widest // 2**i) for i in reversed(range(self.halvings))]
        return {"stem_channels": channels, "image_size": list(self.pixels.shape[1:3])}

    def lookup(self, index: Tensor, regions: int) -> Pixels:
        """The images themselves."""
        return Pixels(self.pixels, index, regions)

    def picture(self, image: int) -> UInt8[np.ndarray, "height width 3"]:
        """The image."""
        return self.pixels[image].numpy()


@dataclass(frozen=True)
class VqaPart(Part[VqaExample]):
    """Questions of one split, with their images.

    Attributes:
        images: What they are about.
        noise: Variance of the noise on image features.
    """

    images: ImageSource
    noise: float = 0.0

    def some(self, name: str, held_out: bool) -> "VqaPart":
        """The questions about every twentieth image, or about all others.

        Args:
            name: Of the part that they make.
            held_out: Which of the two.
        """
        kept = [e for e in self.examples if (e.image % SHARE == SHARE - 1) == held_out]
        note = f"every {SHARE}th image" if held_out else f"without every {SHARE}th image"
        return replace(
            self,
            name=name,
            examples=kept,
            origin=f"{self.origin}, {note}",
            fingerprint=f"{self.fingerprint}, {note}",
        )


SHARE = 20
"""One of so many training images is held out for choosing settings."""
