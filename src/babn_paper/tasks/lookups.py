"""Arguments of a model that are made batch by batch, from what many examples share."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from babn_paper.tasks.ragged import Ragged

Batch = dict[str, Tensor]

CPU = torch.device("cpu")


class Lookup(ABC):
    """Makes arguments for some examples; kept out of files, since it can be made again."""

    keys: int = 0
    """The most places that attention may look at in what it makes."""

    @abstractmethod
    def batch(self, rows: Int[Tensor, "row"]) -> Batch:
        """The arguments for examples at these places, which are given in main memory."""

    @abstractmethod
    def to(self, device: torch.device) -> "Lookup":
        """The same for a model on another device."""


@dataclass(frozen=True)
class Pixels(Lookup):
    """Images, each of which several examples may ask about.

    Attributes:
        images: Colours.
        index: The image of each example.
        keys: Regions that the model makes of an image.
    """

    images: UInt8[Tensor, "image height width 3"]
    index: Int[Tensor, "example"]
    keys: int = 0

    def batch(self, rows: Int[Tensor, "row"]) -> Batch:
        """Colours from -2 to 2, channels first."""
        chosen = self.images[self.index[rows].to(self.images.device)]
        return {"pixel_values": (chosen.movedim(-1, 1).float() - 127.5) / 63.75}

    def to(self, device: torch.device) -> "Pixels":
        """The same with images on another device."""
        return Pixels(self.images.to(device), self.index, self.keys)


@dataclass(frozen=True)
class SoftLabels(Lookup):
    """How right each answer is; most are not right at all, and none of those is kept.

    Attributes:
        answers: Numbers of the answers that are right to some degree.
        scores: How right each of these is, from 0 to 1.
        count: How many answers there are.
    """

    answers: Ragged
    scores: Float[Tensor, "total"]
    count: int

    def batch(self, rows: Int[Tensor, "row"]) -> Batch:
        """A score for every answer."""
        return {"labels": self.dense(rows)}

    def dense(self, rows: Int[Tensor, "row"]) -> Float[Tensor, "row answer"]:
        """The scores of some examples, on the device of the scores."""
        lengths = self.answers.lengths[rows]
        found = torch.zeros(len(rows), self.count, device=self.scores.device)
        line = torch.arange(len(rows)).repeat_interleave(lengths)
        starts = self.answers.starts[rows]
        within = torch.arange(int(lengths.sum())) - (lengths.cumsum(0) - lengths)[line]
        places = (starts[line] + within).to(self.scores.device)
        found[line.to(found.device), self.answers.values[places].long()] = self.scores[places]
        return found

    def to(self, device: torch.device) -> "SoftLabels":
        """The same on another device."""
        return SoftLabels(self.answers.to(device), self.scores.to(device), self.count)


@dataclass(frozen=True)
class FeatureNoise(Lookup):
    """Gaussian noise for the features of every region, other noise for every example.

    The noise of an example depends on the seed and on its place in the data, and on nothing else.

    Attributes:
        variance: Of the noise.
        regions: The most regions of an image.
        size: Size of a region's features.
        seed: Decides the noise.
        device: Where the noise goes.
    """

    variance: float
    regions: int
    size: int
    seed: int = 0
    device: torch.device = CPU

    def batch(self, rows: Int[Tensor, "row"]) -> Batch:
        """Noise of the variance."""
        drawn = torch.from_numpy(np.stack([self._draw(row) for row in rows.tolist()]))
        return {"feature_noise": drawn.to(self.device) * self.variance**0.5}

    def _draw(self, row: int) -> Float[np.ndarray, "region size"]:
        # Twice as fast as torch's generator, which matters: it is drawn again for every mode.
        generator = np.random.default_rng((self.seed, row))
        return generator.standard_normal((self.regions, self.size), dtype=np.float32)

    def to(self, device: torch.device) -> "FeatureNoise":
        """The same for a model on another device; the noise itself stays the same."""
        return FeatureNoise(self.variance, self.regions, self.size, self.seed, device)
