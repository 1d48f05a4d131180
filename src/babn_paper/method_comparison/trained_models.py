"""A classification problem, and the models that are trained on it, each once."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from babn.files import make_folder, replace_file

Batch = Mapping[str, Tensor]
"""Keyword arguments of a model; `labels` holds the classes."""

Batches = Sequence[Batch]


def unchanged(model: nn.Module) -> nn.Module:
    """The model itself."""
    return model


@dataclass(frozen=True)
class Variant:
    """A kind of training of a problem's model.

    Attributes:
        name: Identifies the variant among the trained models.
        prepare: Changes a fresh model before training, such as `babn.convert`.
        label_smoothing: Share of label smoothing.
        rate: Factor of the learning rate; adapters need a larger one.
        trainer: Returns a mixin of transformers' Trainer that the training needs, such as one that
            adds a term to the loss.
    """

    name: str
    prepare: Callable[[nn.Module], nn.Module] = unchanged
    label_smoothing: float = 0.0
    rate: float = 1.0
    trainer: Callable[[], type[Any]] | None = None


SOFTMAX = Variant("softmax")
"""The deterministic model, which all methods share that need no training of their own."""


@dataclass(frozen=True)
class Problem:
    """A classification problem: how to build and train a model, and the data to fit methods to.

    The model takes the tensors of a batch as keyword arguments and returns logits, or an output
    with `logits`, with one row for each label. Batches need not be on the model's device.

    Attributes:
        build: Makes a model on its device, with weights from torch's global random state.
        train: Trains a model in place, for a variant and a seed.
        training: Labelled batches of the training data, for methods that need their features.
        development: Labelled batches that settings are chosen on.
        memory: Gigabytes that attention may take in one pass, as for `babn.predict`.
    """

    build: Callable[[], nn.Module]
    train: Callable[[nn.Module, Variant, int], None]
    training: Batches
    development: Batches
    memory: float | None = None


class Models:
    """Trains each variant of a problem's model once for each seed.

    Args:
        problem: The problem.
        folder: Where trained weights are kept, so that an interrupted comparison resumes; by
            default only in memory.
    """

    timed = True
    """Whether to relate training times to the deterministic model, which is trained for it."""

    def __init__(self, problem: Problem, folder: Path | None = None) -> None:
        self.problem, self.folder = problem, folder
        self._kept: dict[tuple[str, int], dict[str, Any]] = {}

    def get(self, variant: Variant, seed: int) -> nn.Module:
        """A new copy of the trained model, in evaluation mode."""
        kept = self._find(variant, seed) or self._train(variant, seed)
        torch.manual_seed(seed)  # for random parts that are not in the state dict
        model = variant.prepare(self.problem.build())
        model.load_state_dict(kept["weights"])
        return model.eval()

    def _train(self, variant: Variant, seed: int) -> dict[str, Any]:
        """Trains a model and keeps its weights, since a trainer may leave the model wrapped."""
        torch.manual_seed(seed)
        model = variant.prepare(self.problem.build())
        began = time.perf_counter()
        self.problem.train(model, variant, seed)
        return self._keep(variant, seed, model, time.perf_counter() - began)

    def seconds(self, variant: Variant, seed: int) -> float:
        """Duration of the training."""
        kept = self._find(variant, seed)
        if kept is None:
            self.get(variant, seed)
            return self.seconds(variant, seed)
        return float(kept["seconds"])

    def _find(self, variant: Variant, seed: int) -> dict[str, Any] | None:
        path = self._path(variant, seed)
        if (variant.name, seed) not in self._kept and path is not None and path.is_file():
            # Mapped, so that processes that share the file share its memory.
            kept = torch.load(path, "cpu", weights_only=True, mmap=True)
            self._kept[variant.name, seed] = kept
        return self._kept.get((variant.name, seed))

    def _keep(
        self, variant: Variant, seed: int, model: nn.Module, seconds: float
    ) -> dict[str, Any]:
        weights = {name: x.detach().cpu().clone() for name, x in model.state_dict().items()}
        kept = {"weights": weights, "seconds": seconds}
        path = self._path(variant, seed)
        if path is None:
            self._kept[variant.name, seed] = kept
        else:
            make_folder(path.parent)
            replace_file(path, lambda partial: torch.save(kept, partial))
        return kept

    def _path(self, variant: Variant, seed: int) -> Path | None:
        return None if self.folder is None else self.folder / f"{plain(variant.name)}-{seed}.pt"


def plain(name: str) -> str:
    """A name in letters, digits and hyphens, for files."""
    return re.sub("[^A-Za-z0-9]+", "-", name).strip("-")
