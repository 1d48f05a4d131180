"""Predictions from samples of attention, drawn in one or a few forward passes."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from babn.attention.noise_source import NoiseSource, fold_in
from babn.conversion.convert import check_finite
from babn.conversion.override import overriding
from babn.conversion.state import belief_states
from babn.devices import device_of
from babn.errors import BabnWarning, SamplesError
from babn.prediction.batches import Batches, arguments
from babn.prediction.result import Activation, Prediction
from babn.prediction.sampling import evaluating
from babn.prediction.stored_settings import (
    get_noise_level,
    get_residual,
    get_temperature,
    in_output_units,
)
from babn.validation import check_count


def predict(
    model: nn.Module,
    data: Any,
    samples: int = 10,
    seed: int | None = 0,
    *,
    tokenizer: Any = None,
    batch_size: int = 32,
    dropout: bool = False,
    antithetic: bool = True,
    memory: float | None = None,
    output: Callable[[Any], Tensor] | None = None,
    progress: bool = True,
) -> Prediction:
    """Samples the model's output for one batch, many batches, or texts.

    The predictive distribution is the mean over samples, as in the paper. Logits are divided by the
    model's temperature, which is 1 until `babn.tune_noise` or `babn.calibrate` fits it. For
    regression the model's residual, which is 0 until `tune_noise` fits it, widens the prediction.

    Args:
        model: A converted model; its training mode is restored afterwards.
        data: A batch (a dictionary of keyword arguments, a tuple of positional ones or a tensor,
            batch first; labels are ignored); an iterable of such batches, for example a
            `DataLoader`; or a list of texts or of pairs of texts.
        samples: How many samples of attention to draw.
        seed: Makes the samples reproducible, for any `memory`; `None` uses torch's global state.
        tokenizer: The model's tokenizer, for texts.
        batch_size: Texts in one batch.
        dropout: Whether dropout is on as well, as in Monte Carlo dropout.
        antithetic: Whether every second sample mirrors the noise of the one before it, which
            reduces the error of means over samples; otherwise samples are independent. Has no
            effect without a seed, and with kernels for noise over pairs.
        memory: Gigabytes that attention may take in one pass; by default half of the free memory of
            a GPU, and 1 on a CPU.
        output: Extracts the logits from the model's output; by default `.logits`, the output itself
            if it is a tensor, or its first element.
        progress: Whether to show a progress bar over several batches, if tqdm is installed.
    """
    check_count("samples", samples, SamplesError)
    for state in belief_states(model):
        check_finite(dict(state.named_parameters()))
    batches = Batches.of(model, data, tokenizer, batch_size)
    parts = []
    for number, batch in enumerate(batches.shown("predicting", progress)):
        own = fold_in(seed, number) if number and seed is not None else seed
        sampler = _Sampler(model, batch, output or find_logits, own, antithetic)
        parts.append(sampler.prediction(samples, dropout, memory))
    found = batches.in_order(Prediction.cat(parts))
    if found.activation == "identity":
        logits = in_output_units(model, found.sample_logits)
        return replace(found, sample_logits=logits, residual=get_residual(model))
    found = found.tempered(get_temperature(model))
    random = not all(state.config.is_softmax(True, False) for state in belief_states(model))
    if samples > 1 and random and not dropout and get_noise_level(model):
        _warn_of_agreement(found)
    return found


def _warn_of_agreement(found: Prediction) -> None:
    """Warns if the samples hardly differ."""
    if found.activation == "softmax" and found.probs.shape[-1] > 1 and not found.is_spread():
        warnings.warn(
            "All samples give nearly the same prediction: the attention noise is too small to show "
            "uncertainty. Fit its level with babn.tune_noise(model, data), or with babn tune-noise "
            "for a run; or call the model itself in evaluation mode, which gives the posterior "
            "mean in one pass.",
            BabnWarning,
            stacklevel=3,
        )


FEW_TOKENS = 8192
"""Number of tokens, over all samples, up to which a pass takes little memory with any model."""


class _Sampler:
    """Runs a model on a batch repeated once for each sample."""

    def __init__(
        self,
        model: nn.Module,
        batch: Any,
        output: Callable[[Any], Tensor],
        seed: int | None,
        antithetic: bool,
    ) -> None:
        self.model, self.output, self.seed, self.antithetic = model, output, seed, antithetic
        self.args, self.kwargs = arguments(batch)
        values = (*self.args, *self.kwargs.values())
        self.tensors = [x for x in values if isinstance(x, Tensor) and x.ndim]
        if not self.tensors:
            raise SamplesError("The batch has no tensor, so its size is unknown. Pass its inputs.")
        self.rows = len(self.tensors[0])
        self.bytes = 1

    def prediction(self, samples: int, dropout: bool, memory: float | None) -> Prediction:
        """All samples, in one or a few forward passes."""
        followed = self.seed if dropout else None
        with torch.no_grad(), evaluating(self.model, dropout), following_seed(followed, self.model):
            done = samples if memory is None and self.is_small(samples) else 1
            drawn = self.draw(range(done))
            # Outputs of CUDA graphs are overwritten by the next pass.
            logits = drawn.new_empty(samples, *drawn.shape[1:])
            logits[:done] = drawn
            budget = _free_memory(self.model) if memory is None else memory * 2**30
            step = int(min(max(budget / self.bytes, 1), 10**6))
            for start in range(done, samples, step):
                part = range(samples)[start : start + step]
                logits[start : part.stop] = self.draw(part)
        return Prediction(logits, _activation(self.model, logits))

    def draw(self, part: range) -> Tensor:
        """Logits of the samples in `part`."""
        count = len(part)
        taken: list[int] = []
        args = [repeat(x, count, self.rows) for x in self.args]
        kwargs = {name: repeat(x, count, self.rows) for name, x in self.kwargs.items()}
        noise = self.noise(part)
        with overriding(self.model, mode="sample", memory=taken, noise_source=noise):
            logits = self.output(self.model(*args, **kwargs))
        self.bytes = max(sum(taken) // count, 1)
        if logits.shape[0] % count:
            raise SamplesError(
                f"The model's output has {logits.shape[0]} rows for {count} copies of a batch of "
                f"{self.rows}. Pass output= to take a tensor with one row for each example."
            )
        return logits.unflatten(0, (count, -1))

    def noise(self, part: range) -> NoiseSource:
        """The noise of the samples in `part`, which does not depend on the others."""
        if self.seed is None:
            return NoiseSource()
        device = device_of(self.model)
        if not self.antithetic:
            return NoiseSource([fold_in(self.seed, i) for i in part], device)
        seeds = [fold_in(self.seed, i // 2) for i in part]
        return NoiseSource(seeds, device, mirrored=[i % 2 == 1 for i in part])

    def is_small(self, samples: int) -> bool:
        """Whether all samples fit into one pass, without measuring the memory of one of them."""
        tokens = [x.numel() for x in self.tensors if x.dtype == torch.int64]
        return bool(tokens) and samples * max(tokens) <= FEW_TOKENS


def repeat(x: Any, times: int, rows: int) -> Any:
    """Repeats a tensor that has one row for each example; anything else is unchanged."""
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
    """Seeds torch's global generator, which dropout uses, and restores its state afterwards."""
    if seed is None:
        yield
        return
    device = device_of(model)
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
