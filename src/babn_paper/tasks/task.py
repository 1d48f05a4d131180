"""The protocol of tasks: reading and encoding data, making models, scoring predictions.

To add a task, add a module to this folder and a line to `catalogue.py`.
"""

import json
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor, nn

from babn.attention.noise_source import fold_in
from babn.conversion.state import converted_roots
from babn.errors import ConfigError, FormatError
from babn.files import parse_json, replace_text
from babn.prediction.batches import TARGETS
from babn.prediction.predict import find_logits, predict
from babn.prediction.sampling import evaluating
from babn.prediction.stored_settings import in_output_units
from babn_paper.tasks.encoded import Batch, Encoded

Example = TypeVar("Example")

DESCRIPTION = "answers.json"
"""Describes the format of saved predictions."""

Tokenizer = Any
"""A tokenizer of transformers, which have no common base type."""

Outputs = Iterator[tuple[Int[Tensor, "row"], Any]]
"""Indices of examples, and what `Task.predict` returned for them. For most tasks this is a tensor
of shape (sample, row, ...), with one sample in mean mode."""

Mode = Literal["mean", "sampled", "dropout"]
"""One forward pass at the posterior mean, or samples of attention or of dropout."""

MEMORY = 4.0
"""GPU memory limit for attention in one forward pass, in gigabytes; runs may share a GPU."""


@dataclass(frozen=True, kw_only=True)
class Predictor:
    """A trained model with the settings of prediction.

    Attributes:
        model: The model.
        tokenizer: Its tokenizer.
        mode: Posterior mean, samples of attention, or samples of dropout.
        samples: Number of samples.
        seed: Seed of the samples.
        max_length: Maximum number of tokens of a text.
    """

    model: nn.Module
    tokenizer: Tokenizer
    mode: Mode
    samples: int
    seed: int
    max_length: int


@dataclass(frozen=True)
class Part(Generic[Example]):
    """The examples of one split.

    Attributes:
        name: `"train"`, `"dev"`, or another split of the task.
        examples: The examples, not encoded.
        origin: Where they were read: a file, a data set on the hub, or `"builtin"`.
        fingerprint: Hash of the data.
    """

    name: str
    examples: Sequence[Example]
    origin: str
    fingerprint: str


class Predictions(ABC):
    """A model's predictions for a part, from which every metric can be computed."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Writes the predictions to a folder, which is created if necessary."""

    @abstractmethod
    def measure(self) -> dict[str, float]:
        """Computes all metrics by name, including the task's scores.

        Shares are fractions of 1, as everywhere in babn; tables show them as percentages.
        """

    def notes(self) -> dict[str, str]:
        """Remarks on the metrics by name, such as the signature of sacreBLEU."""
        return {}

    def named(self, method: str, seed: int) -> "Predictions":
        """Returns the predictions with a method name and a seed, for comparisons and reports."""
        return self

    def with_residual(self, residual: float) -> "Predictions":
        """Returns the predictions with the residual of a regression."""
        return self

    def ensembled(self, others: "Sequence[Predictions]") -> "Predictions | None":
        """Returns the predictions of an ensemble; `None` if the task does not support ensembles.

        Args:
            others: Predictions of the other members for the same examples.
        """
        return None


class Task(ABC, Generic[Example]):
    """A task that experiments train and evaluate on.

    Attributes:
        name: Name in configurations and folders.
        title: Name in tables.
        scores: Names of the metrics in the paper's table.
        test_parts: Parts that a model is evaluated on after training.
        max_length: Default maximum number of tokens.
        multiple: Batches are padded to a multiple of this length; 0 for the device's default.
        eval_batch_size: Examples per batch in evaluation.
        cached: Whether encoded data is cached on disk.
        own_models: The only models of the task; empty if it takes models of transformers.
    """

    name: str
    title: str
    scores: tuple[str, ...]
    test_parts: tuple[str, ...] = ("dev",)
    max_length: int = 128
    multiple: int = 0
    eval_batch_size: int = 64
    cached: bool = True
    own_models: ClassVar[tuple[str, ...]] = ()

    def configured(self, options: Mapping[str, Any]) -> "Task[Example]":
        """Returns the task with options of a configuration; most tasks have none.

        Args:
            options: By name.
        """
        if options:
            raise ConfigError(
                f"task={self.name!r} has no options, but {sorted(options)} are given. Drop them."
            )
        return self

    def check_ready(self) -> None:
        """Raises an error if a package that evaluation needs is not installed."""

    def title_of(self, origin: str) -> str:
        """Returns the title for training data of an origin, which may be a substitute data set.

        Args:
            origin: Origin of the training data.
        """
        return self.title

    @abstractmethod
    def read(self, data: str, part: str) -> Part[Example]:
        """Reads and validates the examples of a part.

        Args:
            data: `"builtin"`, `"hub"`, or a folder.
            part: Name of the part.
        """

    def has(self, data: str, part: str) -> bool:
        """Whether the data has a part."""
        return True

    def tested_parts(self, data: str) -> list[str]:
        """Returns the test parts that the data has; the first one is required."""
        first, *others = self.test_parts
        return [first, *(part for part in others if self.has(data, part))]

    @abstractmethod
    def texts(self, examples: Sequence[Example]) -> Iterator[str]:
        """Yields all texts of examples, from which vocabularies are built."""

    def load_model(self, name: str, **settings: Any) -> nn.Module:
        """Loads a pretrained model with a new head for the task.

        Args:
            name: A folder, or the name of a model on the hub.
            **settings: Fields of the model's configuration, such as dropout rates.
        """
        raise ConfigError(
            f"model={name!r} is not supported with task={self.name!r}. Give "
            f"{' or '.join(self.own_models)}."
        )

    def make_model(self, sizes: Mapping[str, Any]) -> nn.Module:
        """Makes a randomly initialised ALBERT with a head for the task.

        Args:
            sizes: Fields of its configuration.
        """
        return self.load_model("albert", **sizes)

    def make_pair_model(self, config: type[Any], sizes: Mapping[str, Any]) -> nn.Module:
        """Makes a randomly initialised model of `babn_paper.models` with a head for the task.

        Args:
            config: Class of its configuration.
            sizes: Fields of the configuration.
        """
        raise ConfigError(
            f"task={self.name!r} has no pairs of texts, which {config.model_type} needs. Give "
            "another model."
        )

    @abstractmethod
    def encode(
        self, part: Part[Example], tokenizer: Tokenizer, max_length: int, training: bool
    ) -> Encoded:
        """Encodes examples as the model's arguments, with labels in training."""

    def set_units(self, model: nn.Module) -> None:
        """Stores the units of a regression in a converted model; other tasks have none."""

    def dry_run(self, encoded: Encoded) -> Batch:
        """Returns arguments for the dry run by which conversion finds attention."""
        return without_labels(encoded.batch(torch.tensor([0])))

    def predict(
        self, predictor: Predictor, batch: Batch, rows: Int[Tensor, "row"], number: int
    ) -> Any:
        """Computes a model's outputs for a batch: one sample in mean mode, else several.

        Args:
            predictor: The model and the settings of prediction.
            batch: The model's arguments, without labels.
            rows: Indices of the examples.
            number: Index of the batch. Batches have independent noise.
        """
        model = predictor.model
        if predictor.mode == "mean":
            with evaluating(model):
                found = self.output(model(**batch)).unsqueeze(0)
            return in_output_units(model, found) if converted_roots(model) else found
        on_gpu = next(model.parameters()).device.type == "cuda"
        return predict(
            model,
            batch,
            predictor.samples,
            fold_in(predictor.seed, number),
            dropout=predictor.mode == "dropout",
            antithetic=False,  # as in the paper, whose t-test is for independent samples
            memory=MEMORY if on_gpu else None,
            output=self.output,
        ).sample_logits

    def output(self, output: Any) -> Tensor:
        """Extracts the predictions from the model's output, one row for each input."""
        return find_logits(output)

    @abstractmethod
    def predictions(self, part: Part[Example], encoded: Encoded, outputs: Outputs) -> Predictions:
        """Decodes the model's outputs for a part."""

    def across(self, predictions: Mapping[str, Predictions]) -> dict[str, dict[str, float]]:
        """Computes metrics that need several parts, by part and name.

        Args:
            predictions: Predictions for each part, in the same mode.
        """
        return {}

    @abstractmethod
    def load_predictions(self, folder: Path) -> Predictions:
        """Reads what `Predictions.save` wrote."""


def without_labels(batch: Batch) -> Batch:
    """Returns a batch without its labels."""
    return {name: value for name, value in batch.items() if name not in TARGETS}


def write_description(folder: Path, version: int, kind: str, fields: Mapping[str, Any]) -> None:
    """Describes saved predictions in `answers.json`."""
    description = {"format": version, "kind": kind, **fields}
    replace_text(folder / DESCRIPTION, json.dumps(description, indent=2) + "\n")


@contextmanager
def description_of(folder: Path, version: int, kind: str) -> Iterator[dict[str, Any]]:
    """Yields what `write_description` wrote; damage found while loading raises `FormatError`."""
    path, remedy = folder / DESCRIPTION, "Test the model again."
    try:
        found = parse_json(path.read_text())
        if (found["format"], found["kind"]) != (version, kind):
            raise FormatError(
                f"{path} has format {found['format']!r} of {found['kind']!r}; this version of babn "
                f"reads format {version} of {kind!r}. {remedy}"
            )
        yield found
    except FormatError:
        raise
    except FileNotFoundError as error:
        raise FormatError(f"{error.filename} does not exist. Check the folder.") from error
    except (KeyError, TypeError, ValueError, EOFError, OSError, zlib.error) as error:
        raise FormatError(f"{folder} is damaged: {error!r}. {remedy}") from error
