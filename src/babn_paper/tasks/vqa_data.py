"""Questions about images, and the images or image features that models get."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from babn_paper.tasks.encoded import Batch, Lookup, Ragged
from babn_paper.tasks.task import Part

CPU = torch.device("cpu")

SHARE = 20
"""One in this many training images is held out for choosing settings."""


@dataclass(frozen=True, slots=True)
class VqaExample:
    """A question about an image.

    Attributes:
        question: Text of the question.
        image: Index of the image in its part.
        scores: Scores from 0 to 1 of the answers that annotators gave.
        best: The most frequent answer.
        kind: Kind of question, for scores by kind.
        question_type: Question type of VQA-v2, the beginning of the question; empty if unknown.
    """

    question: str
    image: int
    scores: Mapping[str, float]
    best: str
    kind: str
    question_type: str = ""


@dataclass(frozen=True)
class Pixels(Lookup):
    """Raw images.

    Attributes:
        images: Pixel values.
        index: Image of each example.
        keys: Number of regions that the model makes of an image.
    """

    images: UInt8[Tensor, "image height width 3"]
    index: Int[Tensor, "example"]
    keys: int = 0

    def batch(self, rows: Int[Tensor, "row"]) -> Batch:
        """Returns pixel values scaled to the interval from -2 to 2, channels first."""
        chosen = self.images[self.index[rows].to(self.images.device)]
        return {"pixel_values": (chosen.movedim(-1, 1).float() - 127.5) / 63.75}

    def to(self, device: torch.device) -> "Pixels":
        """Moves the images to a device."""
        return Pixels(self.images.to(device), self.index, self.keys)


@dataclass(frozen=True)
class SoftLabels(Lookup):
    """Scores of answers as labels; only answers with a positive score are stored.

    Attributes:
        answers: Indices of the answers with a positive score.
        scores: Their scores, up to 1.
        count: Number of possible answers.
    """

    answers: Ragged
    scores: Float[Tensor, "total"]
    count: int

    def batch(self, rows: Int[Tensor, "row"]) -> Batch:
        """Returns the scores of all possible answers."""
        return {"labels": self.dense(rows)}

    def dense(self, rows: Int[Tensor, "row"]) -> Float[Tensor, "row answer"]:
        """Returns the scores for some examples, on the device of the scores."""
        lengths = self.answers.lengths[rows]
        found = torch.zeros(len(rows), self.count, device=self.scores.device)
        line = torch.arange(len(rows)).repeat_interleave(lengths)
        starts = self.answers.starts[rows]
        within = torch.arange(int(lengths.sum())) - (lengths.cumsum(0) - lengths)[line]
        places = (starts[line] + within).to(self.scores.device)
        found[line.to(found.device), self.answers.values[places].long()] = self.scores[places]
        return found

    def to(self, device: torch.device) -> "SoftLabels":
        """Moves the labels to a device."""
        return SoftLabels(self.answers.to(device), self.scores.to(device), self.count)


@dataclass(frozen=True)
class FeatureNoise(Lookup):
    """Gaussian noise on the features of image regions, independent between examples.

    The noise of an example depends only on the seed and on the example's index.

    Attributes:
        variance: Variance of the noise.
        regions: Maximum number of regions of an image.
        size: Size of a region's features.
        seed: Seed of the noise.
        device: Device of the model.
    """

    variance: float
    regions: int
    size: int
    seed: int = 0
    device: torch.device = CPU

    def batch(self, rows: Int[Tensor, "row"]) -> Batch:
        """Returns the noise of some examples."""
        drawn = torch.from_numpy(np.stack([self._draw(row) for row in rows.tolist()]))
        return {"feature_noise": drawn.to(self.device) * self.variance**0.5}

    def _draw(self, row: int) -> Float[np.ndarray, "region size"]:
        # Twice as fast as torch's generator; the noise is drawn again for every mode.
        generator = np.random.default_rng((self.seed, row))
        return generator.standard_normal((self.regions, self.size), dtype=np.float32)

    def to(self, device: torch.device) -> "FeatureNoise":
        """Returns the same noise for a model on another device."""
        return replace(self, device=device)


class ImageSource(ABC):
    """Images, or features of their regions.

    Attributes:
        names: Names of the images.
    """

    names: Sequence[str]

    @abstractmethod
    def model_fields(self, sizes: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the fields of a model's configuration that depend on the images.

        Args:
            sizes: The fields that are already set.
        """

    @abstractmethod
    def lookup(self, index: Tensor, regions: int) -> Lookup:
        """Returns a lookup of the model's arguments.

        Args:
            index: Image of each example.
            regions: Maximum number of regions of an image.
        """

    def regions(self, config: Any) -> int:
        """Returns the maximum number of regions of an image for a model."""
        rows, columns = config.grid
        return int(rows * columns)

    def picture(self, image: int) -> UInt8[np.ndarray, "height width 3"] | None:
        """Returns an image for display; `None` if there is none."""
        return None

    def boxes(self, image: int) -> Float[np.ndarray, "region 4"] | None:
        """Returns the corners of an image's regions; `None` if they form a grid."""
        return None


@dataclass(frozen=True)
class RawImages(ImageSource):
    """Images of one size, which the model divides into a grid of regions.

    Attributes:
        pixels: Pixel values.
        names: Names of the images.
        halvings: Number of times that the model halves height and width.
    """

    pixels: UInt8[Tensor, "image height width 3"]
    names: Sequence[str]
    halvings: int = 3

    def model_fields(self, sizes: Mapping[str, Any]) -> dict[str, Any]:
        """Configures convolutions whose widths double up to the model's hidden size."""
        if "stem_channels" in sizes:
            return {"image_size": list(self.pixels.shape[1:3])}
        widest = int(sizes["hidden_size"])
        channels = [max(16, widest // 2**i) for i in reversed(range(self.halvings))]
        return {"stem_channels": channels, "image_size": list(self.pixels.shape[1:3])}

    def lookup(self, index: Tensor, regions: int) -> Pixels:
        """Returns a lookup of the images themselves."""
        return Pixels(self.pixels, index, regions)

    def picture(self, image: int) -> UInt8[np.ndarray, "height width 3"]:
        """Returns the image."""
        return self.pixels[image].numpy()


@dataclass(frozen=True)
class VqaPart(Part[VqaExample]):
    """Questions of one split, with their images.

    Attributes:
        images: The images.
        noise: Variance of the noise on image features.
    """

    images: ImageSource
    noise: float = 0.0

    def some(self, name: str, held_out: bool) -> "VqaPart":
        """Returns the questions about every twentieth image, or about all others.

        Args:
            name: Name of the new part.
            held_out: Whether to return every twentieth image.
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
