"""The result of `babn.predict`: samples of a model's output and their statistics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from babn.errors import ConfigError, FormatError, MissingExtraError, SamplesError
from babn.prediction.regression import mixture_quantile
from babn.prediction.t_tests import welch_p_value
from babn.tensor_files import read_tensors, write_tensors

Activation = Literal["softmax", "sigmoid", "identity"]

NEGLIGIBLE = 0.05
"""Standard deviation of the margin between two logits below which samples agree; at 0.05 a
probability of one half varies by 0.012."""


@dataclass(frozen=True)
class Prediction:
    """Samples of a model's output, and their predictive distribution.

    Attributes:
        sample_logits: The model's outputs, one for each sample of attention.
        activation: How outputs become probabilities. With `"identity"`, for regression, `probs` and
            `std` are the mean and standard deviation of the values, and entropies are meaningless.
        residual: For regression, the residual standard deviation, which `babn.tune_noise` fits:
            each sample is the mean of a normal distribution with this standard deviation.

    Example:
        >>> prediction = Prediction(torch.tensor([[[2.0, 0.0]], [[-1.0, 0.0]]]))
        >>> prediction.probs
        tensor([[0.5749, 0.4251]])
        >>> prediction.disagreement
        tensor([0.5000])
    """

    sample_logits: Float[Tensor, "sample *batch label"]
    activation: Activation = "softmax"
    residual: float = 0.0

    def __len__(self) -> int:
        """The number of examples."""
        if self.sample_logits.ndim < 3:
            raise TypeError("a prediction for one example has no length")
        return self.sample_logits.shape[1]

    def __getitem__(self, index: Any) -> "Prediction":
        """The prediction for some examples: an integer, a slice, a list, or a mask."""
        return replace(self, sample_logits=self.sample_logits[:, index])

    def __repr__(self) -> str:
        """One line with the sizes and the mean uncertainty."""
        samples, *batch, labels = self.sample_logits.shape
        shape = " x ".join(map(str, batch))
        text = f"{samples} samples, {shape} examples, {labels} labels"
        if self.activation != "identity":
            text += f", mean entropy {float(self.entropy.mean()):.3f}"
            text += f", mean mutual information {float(self.mutual_information.mean()):.3f}"
        return f"Prediction({text})"

    @staticmethod
    def cat(predictions: Sequence["Prediction"]) -> "Prediction":
        """Joins predictions for several batches."""
        shapes = {
            (len(p.sample_logits), *p.sample_logits.shape[2:], p.activation, p.residual)
            for p in predictions
        }
        if len(shapes) != 1:
            raise SamplesError(
                f"Predictions of different sizes cannot be joined: {sorted(map(str, shapes))}. "
                "Predict batches with one output shape, or keep their predictions apart."
            )
        joined = torch.cat([p.sample_logits for p in predictions], dim=1)
        return replace(predictions[0], sample_logits=joined)

    def to(self, device: torch.device | str) -> "Prediction":
        """The prediction on another device."""
        return replace(self, sample_logits=self.sample_logits.to(device))

    def save(self, path: Path | str) -> None:
        """Writes the samples to a safetensors file, which `Prediction.load` reads."""
        about = {"activation": self.activation, "residual": repr(self.residual)}
        write_tensors(Path(path), {"sample_logits": self.sample_logits}, about)

    @staticmethod
    def load(path: Path | str) -> "Prediction":
        """Reads a file that `save` wrote."""
        tensors, about = read_tensors(Path(path))
        try:
            activation = cast(Activation, about["activation"])
            residual = float(about.get("residual", 0.0))
            return Prediction(tensors["sample_logits"], activation, residual)
        except KeyError as error:
            raise FormatError(f"{path} holds no prediction: {error} is missing.") from error

    def to_pandas(self, names: Sequence[str] | None = None) -> Any:
        """A data frame with one row for each example.

        Args:
            names: Names of the classes, to show instead of their numbers; not for regression.
        """
        number = self.activation == "identity" and self.probs.shape[-1] == 1
        if self.probs.ndim != 2 or not (number or self.activation == "softmax"):
            raise ConfigError(
                f"probs has shape {tuple(self.probs.shape)} and activation {self.activation!r}; "
                "to_pandas needs one distribution over classes, or one number, for each example."
            )
        low, high = self.interval().unbind(-1)
        if number:
            columns = {"value": self.probs[:, 0], "std": self.std[:, 0], "low": low, "high": high}
            return data_frame(columns)
        chosen = self.probs.argmax(-1).tolist()
        columns = {
            "probability": self.probs.amax(-1),
            "low": low,
            "high": high,
            "disagreement": self.disagreement,
            "entropy": self.entropy,
            "mutual_information": self.mutual_information,
        }
        frame = data_frame(columns)
        frame.insert(0, "label", chosen if names is None else [names[i] for i in chosen])
        return frame

    @cached_property
    def sample_probs(self) -> Float[Tensor, "sample *batch label"]:
        """Probabilities under each sample."""
        logits = self.sample_logits.to(torch.promote_types(self.sample_logits.dtype, torch.float32))
        if self.activation == "softmax":
            return logits.softmax(-1)
        return logits.sigmoid() if self.activation == "sigmoid" else logits

    @cached_property
    def probs(self) -> Float[Tensor, "*batch label"]:
        """The predictive distribution: the mean over samples."""
        return self.sample_probs.mean(0)

    @cached_property
    def std(self) -> Float[Tensor, "*batch label"]:
        """Standard deviation of the probabilities over samples; zero for one sample.

        For regression, the standard deviation of the values, including the residual.
        """
        found = self.sample_probs.std(0, correction=min(1, len(self.sample_probs) - 1))
        return (found.square() + self.residual**2).sqrt() if self.residual else found

    @cached_property
    def entropy(self) -> Float[Tensor, "*batch"]:
        """Entropy of the predictive distribution in nats: total uncertainty."""
        return self._entropy(self.probs)

    @cached_property
    def expected_entropy(self) -> Float[Tensor, "*batch"]:
        """Mean entropy of the samples' distributions: aleatoric uncertainty."""
        return self._entropy(self.sample_probs).mean(0)

    @cached_property
    def mutual_information(self) -> Float[Tensor, "*batch"]:
        """Entropy minus expected entropy: the uncertainty due to random attention."""
        return (self.entropy - self.expected_entropy).clamp(min=0)

    @cached_property
    def p_value(self) -> Float[Tensor, "*batch"]:
        """P-value of Welch's t-test between the samples of the two most probable classes.

        The paper's measure of certainty. It tests whether the *means* of the two classes differ, so
        it falls as samples are added, however often they disagree: with 20 samples most inputs are
        "certain" (below 0.05). `disagreement` and `interval` do not depend on the number of
        samples. The test assumes independent samples, which `babn.predict` draws with
        `antithetic=False`. NaN for one class or one sample.
        """
        if self.probs.shape[-1] < 2:
            return torch.full_like(self.entropy, torch.nan)
        return welch_p_value(*of_top_two(self.sample_probs, self.probs))

    @cached_property
    def disagreement(self) -> Float[Tensor, "*batch"]:
        """Share of samples whose most probable class differs from the prediction's."""
        differs = self.sample_probs.argmax(-1) != self.probs.argmax(-1)
        return differs.to(self.probs.dtype).mean(0)

    def interval(self, coverage: float = 0.9) -> Float[Tensor, "*batch 2"]:
        """Central interval, over the samples, of the probability of the predicted class.

        For regression, the interval that contains the value with the given probability if the model
        has a residual (see `babn.tune_noise`). Without one the interval covers the samples alone
        and is too narrow.

        Args:
            coverage: Share of the samples inside.
        """
        if not 0 < coverage < 1:
            raise ConfigError(f"coverage={coverage!r} is invalid. Give one between 0 and 1.")
        chosen = self.probs.argmax(-1, keepdim=True).expand(*self.sample_probs.shape[:-1], 1)
        of_chosen = self.sample_probs.gather(-1, chosen).squeeze(-1)
        low, high = (1 - coverage) / 2, (1 + coverage) / 2
        if self.residual:
            found = [mixture_quantile(of_chosen, self.residual, each) for each in (low, high)]
            return torch.stack(found, -1).to(of_chosen.dtype)
        ends = self.probs.new_tensor([low, high])
        return torch.quantile(of_chosen, ends, dim=0).movedim(0, -1)

    def is_spread(self) -> bool:
        """Whether noise changes the margin between the top two classes for any input."""
        first, second = of_top_two(self.sample_logits.float(), self.probs)
        return bool((first - second).std(0).max() > NEGLIGIBLE)

    def tempered(self, temperature: float) -> "Prediction":
        """Divides all logits by a temperature; regression values are unchanged."""
        if self.activation == "identity" or temperature == 1:
            return self
        return replace(self, sample_logits=self.sample_logits / temperature)

    def _entropy(self, probs: Tensor) -> Tensor:
        if self.activation == "sigmoid":
            return -(torch.xlogy(probs, probs) + torch.xlogy(1 - probs, 1 - probs)).sum(-1)
        return -torch.xlogy(probs, probs).sum(-1)


def of_top_two(
    values: Float[Tensor, "sample *batch label"], probs: Float[Tensor, "*batch label"]
) -> tuple[Float[Tensor, "sample *batch"], Float[Tensor, "sample *batch"]]:
    """The values of the two most probable classes in each sample; ties go to the lower class."""
    first = probs.argmax(-1, keepdim=True)
    second = probs.scatter(-1, first, -torch.inf).argmax(-1, keepdim=True)
    size = (*values.shape[:-1], 1)
    of_first, of_second = (values.gather(-1, index.expand(size)) for index in (first, second))
    return of_first.squeeze(-1), of_second.squeeze(-1)


def check_classes(prediction: Prediction, reason: str) -> None:
    """Validates that a prediction comes from a classifier and has one row per example."""
    if prediction.activation != "softmax" or prediction.probs.ndim != 2:
        raise ConfigError(
            f"prediction has activation {prediction.activation!r} and probabilities of shape "
            f"{tuple(prediction.probs.shape)}; {reason}. Pass the prediction of a classifier."
        )


def rows_at(index: Any, count: int) -> Any:
    """An index that keeps the batch dimension: an integer becomes a slice of one row."""
    if not isinstance(index, Integral):
        return index
    row = int(index) + count if int(index) < 0 else int(index)
    if not 0 <= row < count:
        raise IndexError(f"index {index} is out of range for {count} examples")
    return slice(row, row + 1)


def cat_padded(tensors: Sequence[Tensor], axis: int, value: int = 0) -> Tensor:
    """Joins tensors along an axis, the dimensions after it padded at the end to the longest."""
    longest = [max(sizes) for sizes in zip(*(x.shape[axis + 1 :] for x in tensors), strict=True)]
    padded = []
    for x in tensors:
        gaps = [size - own for size, own in zip(longest, x.shape[axis + 1 :], strict=True)]
        padded.append(F.pad(x, [n for gap in reversed(gaps) for n in (0, gap)], value=value))
    return torch.cat(padded, axis)


def data_frame(columns: Mapping[str, Tensor]) -> Any:
    """A data frame of pandas with the given columns."""
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingExtraError("to_pandas needs pandas: pip install pandas") from error
    return pd.DataFrame({name: values.cpu().numpy() for name, values in columns.items()})
