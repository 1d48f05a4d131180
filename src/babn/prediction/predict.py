"""Predictions from samples of attention, drawn in few passes."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from babn.attention.noise_source import NoiseSource, fold_in
from babn.conversion.convert import check_finite
from babn.conversion.example_inputs import as_call
from babn.conversion.override import overriding
from babn.conversion.state import belief_states
from babn.errors import BabnWarning, ConfigError, SamplesError
from babn.prediction.modes import evaluating
from babn.prediction.temperature import get_noise_level, get_temperature
from babn.prediction.welch import welch_p_value

Activation = Literal["softmax", "sigmoid", "identity"]

ANSWERS = {"labels", "label", "label_ids", "start_positions", "end_positions", "mc_labels"}
"""Arguments that hold answers, with which models put a loss before their logits."""

NEGLIGIBLE = 0.05
"""Standard deviation over samples of the margin between two logits that changes next to nothing:
a probability of one half moves by 0.012."""


@dataclass(frozen=True)
class Prediction:
    """Samples of a model's answer and what follows from them.

    Attributes:
        sample_logits: The model's outputs, one for each sample of attention.
        activation: How outputs become probabilities; `"identity"` for regression, where `probs` and
            `std` are mean and spread of the values and the entropies mean nothing.
    """

    sample_logits: Float[Tensor, "sample *batch label"]
    activation: Activation = "softmax"

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
        """Standard deviation of the probabilities over samples; zero for one sample."""
        return self.sample_probs.std(0, correction=min(1, len(self.sample_probs) - 1))

    @cached_property
    def entropy(self) -> Float[Tensor, "*batch"]:
        """Entropy of the predictive distribution in nats: total uncertainty."""
        return self._entropy(self.probs)

    @cached_property
    def expected_entropy(self) -> Float[Tensor, "*batch"]:
        """Mean entropy of the samples' distributions: uncertainty of the data."""
        return self._entropy(self.sample_probs).mean(0)

    @cached_property
    def mutual_information(self) -> Float[Tensor, "*batch"]:
        """Entropy less expected entropy: uncertainty that attention accounts for."""
        return (self.entropy - self.expected_entropy).clamp(min=0)

    @cached_property
    def p_value(self) -> Float[Tensor, "*batch"]:
        """P-value of Welch's t-test between the samples of the two most probable classes.

        The paper's measure of certainty. It tests whether the *means* of the two classes differ, so
        that it falls with the number of samples however often they disagree: with 20 samples most
        inputs are "certain" (below 0.05). `disagreement` and `interval` do not depend on the
        number. NaN for one class or one sample.
        """
        if self.probs.shape[-1] < 2:
            return torch.full_like(self.entropy, torch.nan)
        return welch_p_value(*self._top_two(self.sample_probs))

    @cached_property
    def disagreement(self) -> Float[Tensor, "*batch"]:
        """Share of samples whose most probable class is not that of the prediction."""
        differs = self.sample_probs.argmax(-1) != self.probs.argmax(-1)
        return differs.to(self.probs.dtype).mean(0)

    def interval(self, coverage: float = 0.9) -> Float[Tensor, "*batch 2"]:
        """Central interval over the samples of the probability of the predicted class.

        Args:
            coverage: Share of samples inside.
        """
        if not 0 < coverage < 1:
            raise ConfigError(f"coverage={coverage!r} is not possible. Give one between 0 and 1.")
        chosen = self.probs.argmax(-1, keepdim=True).expand(*self.sample_probs.shape[:-1], 1)
        ends = self.probs.new_tensor([(1 - coverage) / 2, (1 + coverage) / 2])
        of_chosen = self.sample_probs.gather(-1, chosen).squeeze(-1)
        return torch.quantile(of_chosen, ends, dim=0).movedim(0, -1)

    def recentered(self, logits: Float[Tensor, "*batch label"]) -> "Prediction":
        r"""The samples moved so that the mean of their logits is `logits`.

        $l_s' = l + \sqrt{S / (S - 1)}\,(l_s - \bar l)$; one sample stays as it is.

        Args:
            logits: The logits at the posterior mean.
        """
        samples = len(self.sample_logits)
        if samples == 1:
            return self
        deviation = self.sample_logits - self.sample_logits.mean(0)
        moved = logits + (samples / (samples - 1)) ** 0.5 * deviation
        return Prediction(moved, self.activation)

    def _top_two(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Values of each sample for the two classes that are most probable over all samples."""
        top = two_most_probable(self.probs).expand(*values.shape[:-1], 2)
        first, second = values.gather(-1, top).unbind(-1)
        return first, second

    def is_spread(self) -> bool:
        """Whether noise changes the margin between the two first classes for any input."""
        first, second = self._top_two(self.sample_logits.float())
        return bool((first - second).std(0).max() > NEGLIGIBLE)

    def tempered(self, temperature: float) -> "Prediction":
        """The prediction with all logits divided by a temperature; values of regression stay."""
        if self.activation == "identity" or temperature == 1:
            return self
        return Prediction(self.sample_logits / temperature, self.activation)

    def _entropy(self, probs: Tensor) -> Tensor:
        if self.activation == "sigmoid":
            return -(torch.xlogy(probs, probs) + torch.xlogy(1 - probs, 1 - probs)).sum(-1)
        return -torch.xlogy(probs, probs).sum(-1)


def two_most_probable(probs: Float[Tensor, "*batch label"]) -> Int[Tensor, "*batch 2"]:
    """Indices of the two most probable classes; ties go to the lower index."""
    first = probs.argmax(-1, keepdim=True)
    second = probs.scatter(-1, first, -torch.inf).argmax(-1, keepdim=True)
    return torch.cat([first, second], -1)


def predict(
    model: nn.Module,
    batch: Any,
    samples: int = 20,
    seed: int | None = 0,
    *,
    recenter: bool | None = None,
    dropout: bool = False,
    memory: float | None = None,
    output: Callable[[Any], Tensor] | None = None,
) -> Prediction:
    """Samples of the model's answer, drawn in one or a few passes.

    Where the model gives one row of logits for each example, the samples are recentered: their
    logits keep their deviations and get the mean of a pass at the posterior mean, as in the
    linearized Laplace approximation. The model's classes stay what they are without noise, and
    noise sets how sure it is of them. Logits are divided by the model's temperature, which is 1
    until `babn.calibrate` fits it.

    Args:
        model: A converted model; its training mode is restored afterwards.
        batch: A dictionary of keyword arguments, a tuple or a tensor, batch first; labels are
            ignored.
        samples: How many samples of attention to draw.
        seed: Makes the samples reproducible, whatever the memory; `None` uses torch's global state.
        recenter: Whether to recenter the samples' logits; by default yes, except with dropout and
            for outputs with more than one row of logits for an example. With `False` the prediction
            is the mean over samples, as in the paper.
        dropout: Whether dropout is on as well, as in Monte Carlo dropout.
        memory: Gigabytes that attention may take in one pass; by default half of the free memory of
            a GPU, and 1 on a CPU.
        output: Takes the logits from the model's output; by default `.logits`, the output itself if
            it is a tensor, or its first element.
    """
    check_samples(samples)
    for state in belief_states(model):
        check_finite(dict(state.named_parameters()))
    args, kwargs = as_call(batch)
    kwargs = {name: value for name, value in kwargs.items() if name not in ANSWERS}
    sampler = _Sampler(model, args, kwargs, output or find_logits, seed)
    sampler.check_batch()
    followed = seed if dropout else None
    with torch.no_grad(), evaluating(model, dropout), following_seed(followed, model):
        logits = [sampler.draw(0, 1)]
        step = sampler.samples_per_pass(memory)
        for start in range(1, samples, step):
            logits.append(sampler.draw(start, min(start + step, samples)))
        found = Prediction(torch.cat(logits), _activation(model, logits[0]))
        if recenter is None:
            recenter = not dropout and logits[0].ndim == 3
        if samples > 1 and is_random(model):
            found = found.recentered(sampler.mean()) if recenter else found
            if not dropout and get_noise_level(model):
                _warn_of_agreement(found)
    return found.tempered(get_temperature(model))


def is_random(model: nn.Module) -> bool:
    """Whether samples of the model's attention can differ."""
    return not all(state.config.is_softmax(True, False) for state in belief_states(model))


def _warn_of_agreement(found: Prediction) -> None:
    """Warns where random attention changes nothing that is worth sampling."""
    if found.activation == "softmax" and found.probs.shape[-1] > 1 and not found.is_spread():
        warnings.warn(
            "All samples give nearly the same prediction: the attention noise is too small to show "
            "uncertainty. Fit its level with babn.tune_noise(model, data), or call the model "
            "itself in evaluation mode, which gives the posterior mean in one pass.",
            BabnWarning,
            stacklevel=3,
        )


def check_samples(value: Any, name: str = "samples") -> None:
    """Refuses what is not a whole number from 1 on."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise SamplesError(f"{name}={value!r} is not possible. Give a whole number from 1 on.")


@dataclass
class _Sampler:
    """Runs a model on copies of a batch, one for each sample."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Callable[[Any], Tensor]
    seed: int | None
    bytes: int = 1

    def draw(self, start: int, stop: int) -> Tensor:
        """Logits of the samples from `start` to before `stop`."""
        count = stop - start
        seeds = None if self.seed is None else [fold_in(self.seed, i) for i in range(start, stop)]
        taken: list[int] = []
        args = [repeat(x, count, self.rows) for x in self.args]
        kwargs = {name: repeat(x, count, self.rows) for name, x in self.kwargs.items()}
        noise = {"noise_source": NoiseSource(seeds), "fixed_noise": None}
        with overriding(self.model, mode="sample", memory=taken, **noise):
            logits = self.output(self.model(*args, **kwargs))
        self.bytes = max(sum(taken) // count, 1)
        if logits.shape[0] % count:
            raise SamplesError(
                f"The model's output has {logits.shape[0]} rows for {count} copies of a batch of "
                f"{self.rows}. Pass output= to take a tensor with one row for each example."
            )
        return logits.unflatten(0, (count, -1))

    def mean(self) -> Tensor:
        """Logits at the posterior mean, without dropout."""
        with evaluating(self.model), overriding(self.model, mode="mean"):
            return self.output(self.model(*self.args, **self.kwargs))

    @property
    def rows(self) -> int:
        """The batch size."""
        values = (*self.args, *self.kwargs.values())
        return next(x.shape[0] for x in values if isinstance(x, Tensor) and x.ndim)

    def check_batch(self) -> None:
        """Refuses a batch without tensors."""
        values = (*self.args, *self.kwargs.values())
        if not any(isinstance(x, Tensor) and x.ndim for x in values):
            raise SamplesError("The batch has no tensor, so its size is unknown. Pass its inputs.")

    def samples_per_pass(self, memory: float | None) -> int:
        """How many samples fit into the memory budget, from what the first one took."""
        budget = _free_memory(self.model) if memory is None else memory * 2**30
        return int(min(max(budget / self.bytes, 1), 10**6))


def repeat(x: Any, times: int, rows: int) -> Any:
    """A tensor with one row for each example, repeated as a whole; anything else unchanged."""
    if isinstance(x, Tensor) and x.ndim and x.shape[0] == rows and times > 1:
        return x.repeat(times, *[1] * (x.ndim - 1))
    return x


def find_logits(output: Any) -> Tensor:
    """The logits of a model's output."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping) and isinstance(output.get("logits"), Tensor):
        return output["logits"]
    first = next(iter(output.values())) if isinstance(output, Mapping) else output[0]
    assert isinstance(first, Tensor)
    return first


@contextmanager
def following_seed(seed: int | None, model: nn.Module) -> Iterator[None]:
    """Makes what draws from the global state, as dropout does, follow a seed; it is restored."""
    if seed is None:
        yield
        return
    device = next(model.parameters()).device
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _free_memory(model: nn.Module) -> float:
    device = belief_states(model)[0].kl_weight.device
    return torch.cuda.mem_get_info(device)[0] / 2 if device.type == "cuda" else 2**30


def _activation(model: nn.Module, logits: Tensor) -> Activation:
    problem = getattr(getattr(model, "config", None), "problem_type", None)
    if problem == "regression" or logits.shape[-1] == 1:
        return "identity"
    return "sigmoid" if problem == "multi_label_classification" else "softmax"
