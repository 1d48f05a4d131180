r"""Detects inputs unlike the training data by their distance from it in the model's features.

Features are the mean state of each layer and the input of the last linear layer. In each of them
the distance of an input is one minus its cosine similarity to the nearest training example (Sun et
al. 2022, *Out-of-distribution Detection with Deep Nearest Neighbors*,
<https://arxiv.org/abs/2204.06507>); its distance from the training data is the mean over features.
Unlike the entropy of a prediction it does not depend on how the classes divide the space: an input
can be far from all training data and deep inside the region of one class.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from babn.devices import device_of
from babn.errors import ConfigError, FormatError
from babn.prediction.features import features, find_head, find_layers
from babn.tensor_files import read_tensors, write_tensors

ROWS = 1024
"""Number of inputs whose similarities to all training examples are computed at a time."""


@dataclass(frozen=True)
class NoveltyDetector:
    """Detects inputs that are unlike the training data; created by `babn.fit_novelty`.

    Attributes:
        training: Normalised features of the training data, one tensor for each layer.
        distances: Distances of the development data, in ascending order.
    """

    training: list[Float[Tensor, "example _"]]
    distances: Float[Tensor, "development"]

    def distance(
        self,
        model: nn.Module,
        data: Any,
        *,
        tokenizer: Any = None,
        batch_size: int = 32,
        progress: bool = True,
    ) -> Float[Tensor, "input"]:
        """The distance of each input from the training data, larger for less familiar ones.

        Args:
            model: The model that the detector was fitted with.
            data: A batch, batches or texts, as for `babn.predict`.
            tokenizer: The model's tokenizer, for texts.
            batch_size: Texts in one batch.
            progress: Whether to show a progress bar over several batches.
        """
        settings = {"tokenizer": tokenizer, "batch_size": batch_size, "progress": progress}
        found = _features(model, data, **settings)
        sizes, own = [x.shape[1] for x in found], [x.shape[1] for x in self.training]
        if sizes != own:
            raise ConfigError(
                f"model has features of sizes {sizes}, and the detector was fitted to {own}. Pass "
                "the model that it was fitted with."
            )
        return _distances(found, self.training, device_of(model))

    def p_values(self, distance: Float[Tensor, "input"]) -> Float[Tensor, "input"]:
        r"""The share of development inputs that are at least as far away.

        For an input from the distribution of the development data, $P(p \le \alpha) \le \alpha$
        for every $\alpha$ (a conformal p-value, Bates et al. 2021,
        <https://arxiv.org/abs/2104.08279>). Flagging inputs with $p \le 0.05$ thus flags
        at most 5 % of familiar ones.
        """
        nearer = torch.searchsorted(self.distances, distance.to(self.distances))
        return (len(self.distances) - nearer + 1) / (len(self.distances) + 1)

    def save(self, path: Path | str) -> None:
        """Writes the detector to a safetensors file, which `NoveltyDetector.load` reads."""
        tensors = {f"training.{i:03}": x for i, x in enumerate(self.training)}
        write_tensors(Path(path), {**tensors, "distances": self.distances})

    @staticmethod
    def load(path: Path | str) -> "NoveltyDetector":
        """Reads a file that `save` wrote."""
        tensors, _ = read_tensors(Path(path))
        if "distances" not in tensors or len(tensors) < 2:
            raise FormatError(f"{path} holds no detector. Pass a file that `save` wrote.")
        distances = tensors.pop("distances")
        return NoveltyDetector([tensors[name] for name in sorted(tensors)], distances)


def fit_novelty(
    model: nn.Module,
    training: Any,
    development: Any,
    *,
    tokenizer: Any = None,
    batch_size: int = 32,
    progress: bool = True,
) -> NoveltyDetector:
    """Fits a detector of inputs that are unlike the training data; needs no labels.

    Args:
        model: A model with one output for each input, such as a classifier, converted or not. Its
            posterior mean is used.
        training: Inputs that the model was trained on: batches or texts, as for `babn.predict`.
        development: Inputs from the same distribution that it was not trained on, which p-values
            refer to.
        tokenizer: The model's tokenizer, for texts.
        batch_size: Texts in one batch.
        progress: Whether to show a progress bar.

    Example:
        >>> model = torch.nn.Linear(2, 3)
        >>> detector = fit_novelty(model, torch.rand(50, 2), torch.rand(19, 2))
        >>> distance = detector.distance(model, torch.tensor([[0.5, 0.5], [-1.0, -1.0]]))
        >>> bool(detector.p_values(distance)[1] <= 0.05)
        True
    """
    settings = {"tokenizer": tokenizer, "batch_size": batch_size, "progress": progress}
    known = [F.normalize(x, dim=1) for x in _features(model, training, **settings)]
    held_out = _features(model, development, **settings)
    distances = _distances(held_out, known, device_of(model))
    return NoveltyDetector(known, distances.sort().values)


def _features(model: nn.Module, data: Any, **settings: Any) -> list[Tensor]:
    found = features(model, data, find_head(model)[1], find_layers(model), **settings)
    if found[-1].ndim != 2:
        raise ConfigError(
            f"The last linear layer of {type(model).__name__} receives features of shape "
            f"{tuple(found[-1].shape)}. Give a model with one output for each input, such as a "
            "classifier of texts or images."
        )
    return found


def _distances(
    found: list[Tensor], known: list[Tensor], device: torch.device
) -> Float[Tensor, "input"]:
    """The mean over features of the distance to the nearest known example, on the CPU."""
    each = []
    for x, y in zip(found, known, strict=True):
        parts, transposed = F.normalize(x.to(device), dim=1).split(ROWS), y.to(device).T
        each.append(torch.cat([1 - (part @ transposed).amax(1) for part in parts]))
    return torch.stack(each).mean(0).cpu()
