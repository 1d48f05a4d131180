"""Fits the noise level and the temperature of a converted model to development data."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Real
from torch import Tensor, nn

from babn.devices import device_of
from babn.elbo import IGNORED
from babn.errors import ConfigError, SamplesError
from babn.evaluation.temperature_scaling import bounded_temperature
from babn.metrics.accuracy_nll_brier import accuracy, nll
from babn.prediction import stored_settings as stored
from babn.prediction.batches import are_texts, is_single, text_batches
from babn.prediction.predict import find_logits, predict
from babn.prediction.regression import fit_residual, mixture_nll
from babn.prediction.result import Prediction, check_classes
from babn.progress import bar
from babn.validation import check_at_least, check_count

FIRST_LEVELS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Levels of the first round; the search extends beyond them by factors of 2."""

LOWEST, HIGHEST = 2.0**-4, 2.0**8
"""Bounds of the search."""

REFINEMENTS = (2**0.5, 2**0.25)
"""Ratio of the best level to the neighbours that each refinement round tries."""


@dataclass(frozen=True)
class Trial:
    """The result of one noise level on the development data.

    Attributes:
        level: The noise level.
        temperature: The temperature at this level.
        nll: Mean negative log likelihood of the sampled prediction.
        accuracy: Share of correct predictions; `None` for language models and regression.
        residual: For regression, the residual standard deviation.
    """

    level: float
    temperature: float
    nll: float
    accuracy: float | None
    residual: float | None = None


@dataclass(frozen=True)
class NoiseTuning:
    """The noise level and temperature that `tune_noise` chose, and all trials.

    Attributes:
        level: The chosen level, to which the model is set.
        trials: One for each level that was tried, in ascending order; the first has no noise.
    """

    level: float
    trials: tuple[Trial, ...]

    @property
    def chosen(self) -> Trial:
        """The trial of the chosen level."""
        return next(trial for trial in self.trials if trial.level == self.level)

    def __str__(self) -> str:
        """A table of the trials, with the chosen level marked."""
        first = self.trials[0]
        fitted = "temperature" if first.residual is None else "   residual"
        lines = [f"   level  {fitted}      NLL{'' if first.accuracy is None else '  accuracy'}"]
        for trial in self.trials:
            scale = trial.residual or trial.temperature
            line = f"{trial.level:8.3f} {scale:12.3f} {trial.nll:8.4f}"
            line += "" if trial.accuracy is None else f" {trial.accuracy:9.1%}"
            lines.append(line + ("  <- chosen" if trial.level == self.level else ""))
        return "\n".join(lines)


def tune_noise(
    model: nn.Module,
    data: Any,
    labels: Real[Tensor, "*example"] | Sequence[float] | None = None,
    *,
    samples: int = 20,
    seed: int = 0,
    tokenizer: Any = None,
    batch_size: int = 32,
    temperature: bool = True,
    max_accuracy_drop: float = 0.003,
    memory: float | None = None,
    progress: bool = True,
) -> NoiseTuning:
    """Fits the model's noise level and temperature to development data, without gradients.

    Chooses the level and temperature with the lowest negative log likelihood of the sampled
    prediction, among the levels whose accuracy does not drop by more than allowed. Level 0 is one
    of them, so the development NLL is never worse than with the deterministic model and
    temperature scaling. All levels use the same random numbers.

    Args:
        model: A converted model, fine-tuned after conversion or not; its level and temperature are
            changed, and saved with it.
        data: A batch, an iterable of batches or a list of texts, as for `predict`. Language models
            are fitted to the tokens of their texts.
        labels: The correct classes, for texts or for one batch without `labels`; or the values of a
            regression, as floats. For a regression the residual standard deviation
            (`babn.get_residual`) is fitted with the level.
        samples: Number of attention samples. The error of their mean raises the NLL, so that fewer
            samples lead to less noise.
        seed: Seed of the samples.
        tokenizer: The model's tokenizer, for texts.
        batch_size: Texts in one batch.
        temperature: Whether to fit a temperature for each level; the model's temperature stays
            otherwise, and for language models. If every prediction is correct, it is at least 1.
        max_accuracy_drop: Largest drop in accuracy from that without noise, as a share of all
            examples.
        memory: Gigabytes that attention may take in one forward pass, as for `predict`.
        progress: Whether to show a progress bar, if tqdm is installed.
    """
    check_count("samples", samples, SamplesError)
    check_at_least("max_accuracy_drop", max_accuracy_drop, 0.0)
    batches = _labelled_batches(model, data, labels, tokenizer, batch_size)
    shown = bar("noise levels", len(FIRST_LEVELS) + 1 + 2 * len(REFINEMENTS), progress)
    settings = {"seed": seed, "memory": memory}
    search = _Search(model, batches, samples, settings, temperature, max_accuracy_drop, shown)
    level, scaling = stored.get_noise_level(model), stored.get_temperature(model)
    residual = stored.get_residual(model)
    try:
        best = search.run()
        level, scaling, residual = best.level, best.temperature, best.residual or 0.0
    finally:
        shown.close()
        stored.set_noise_level(model, level)
        stored.set_temperature(model, scaling)
        stored.set_residual(model, residual)
    return NoiseTuning(level, tuple(search.tried[at] for at in sorted(search.tried)))


Labelled = tuple[Any, Real[Tensor, "row *token"]]
"""Inputs of a model and their labels."""


@dataclass
class _Search:
    """Tries levels and keeps their results."""

    model: nn.Module
    batches: list[Labelled]
    samples: int
    settings: dict[str, Any]
    fits_temperature: bool
    max_accuracy_drop: float
    bar: Any
    tried: dict[float, Trial] = field(default_factory=dict)

    def run(self) -> Trial:
        """Tries the first levels, extends the range while the best is at its end, and refines."""
        for level in (0.0, *FIRST_LEVELS):
            self.trial(level)
        while (further := self._beyond(self.best.level)) is not None:
            self.trial(further)
        for factor in REFINEMENTS if self.best.level else ():
            centre = self.best.level
            for level in (centre / factor, centre * factor):
                self.trial(level)
        return self.best

    @property
    def best(self) -> Trial:
        """The trial with the lowest NLL, among those that lose little accuracy or none."""
        least = (self.tried[0.0].accuracy or 0.0) - self.max_accuracy_drop - 1e-9
        admitted = [t for t in self.tried.values() if t.accuracy is None or t.accuracy >= least]
        return min(admitted, key=lambda trial: (trial.nll, trial.level))

    def _beyond(self, best: float) -> float | None:
        """The next level outside the range, if the best one is at its end."""
        lowest, highest = min(level for level in self.tried if level), max(self.tried)
        if best <= lowest and lowest > LOWEST:
            return lowest / 2
        return highest * 2 if best == highest < HIGHEST else None

    def trial(self, level: float) -> None:
        """Computes the result of a level."""
        labels = self.batches[0][1]
        stored.set_noise_level(self.model, level)
        if self.fits_temperature and labels.ndim == 1:
            stored.set_temperature(self.model, 1.0)
        if labels.is_floating_point():
            result = self._of_numbers
        else:
            result = self._of_tokens if labels.ndim > 1 else self._of_classes
        with warnings.catch_warnings():  # low levels are among those that are tried
            warnings.filterwarnings("ignore", "All samples give nearly the same prediction")
            self.tried[level] = result(level)
        self.bar.update()

    def _predict(self, inputs: Any, output: Callable[[Any], Tensor] | None = None) -> Prediction:
        samples = self.samples if stored.get_noise_level(self.model) else 1
        return predict(self.model, inputs, samples, **self.settings, output=output).to("cpu")

    def _predicted(self) -> tuple[Prediction, Real[Tensor, "example"]]:
        """The prediction for all batches, and their labels."""
        labels = torch.cat([y.flatten().cpu() for _, y in self.batches])
        return Prediction.cat([self._predict(x) for x, _ in self.batches]), labels

    def _of_numbers(self, level: float) -> Trial:
        """The result of a regression."""
        found, labels = self._predicted()
        if found.sample_logits.ndim != 3 or found.sample_logits.shape[-1] != 1:
            raise ConfigError(
                "labels are floats, and the model's output has shape "
                f"{tuple(found.sample_logits.shape[1:])}. Give classes as integers, or a model "
                "with one output."
            )
        values = found.sample_logits.squeeze(-1)
        residual = fit_residual(values, labels)
        loss = float(mixture_nll(values, labels, residual).mean())
        return Trial(level, stored.get_temperature(self.model), loss, None, residual)

    def _of_classes(self, level: float) -> Trial:
        """The result of a classifier."""
        found, labels = self._predicted()
        check_classes(found, "noise is tuned by the likelihood of classes or tokens")
        temperature = stored.get_temperature(self.model)
        if self.fits_temperature:
            temperature = bounded_temperature(found, labels)
            found = found.tempered(temperature)
        return Trial(level, temperature, nll(found, labels), accuracy(found, labels))

    def _of_tokens(self, level: float) -> Trial:
        """The result of a language model, without accuracy."""
        log_probs = torch.cat([self._log_probs(*batch) for batch in self.batches])
        if not len(log_probs):
            raise ConfigError("data has no labels that count. Give labelled batches.")
        return Trial(level, stored.get_temperature(self.model), -float(log_probs.mean()), None)

    def _log_probs(self, inputs: Any, labels: Tensor) -> Float[Tensor, "token"]:
        """Log probability of each token of a language model."""
        generates = getattr(self.model, "can_generate", lambda: False)()
        config = getattr(self.model, "config", None)
        # The outputs of a decoder at a token predict the token after it.
        ahead = generates and not getattr(config, "is_encoder_decoder", False)
        labels = labels[:, 1:] if ahead else labels
        temperature = stored.get_temperature(self.model)

        def log_probs(output: Any) -> Tensor:
            logits = find_logits(output).float()
            logits = (logits[:, :-1] if ahead else logits) / temperature
            index = labels.clamp(min=0).to(logits.device)
            index = index.repeat(len(logits) // len(index), 1)
            return logits.log_softmax(-1).gather(-1, index.unsqueeze(-1))

        found = self._predict(inputs, log_probs).sample_logits.squeeze(-1).double()
        mean = found.logsumexp(0) - math.log(len(found))
        return mean[labels.cpu() != IGNORED]


def _labelled_batches(
    model: nn.Module, data: Any, labels: Any, tokenizer: Any, batch_size: int
) -> list[Labelled]:
    """The batches in the data with their labels, which are those given or in the batches."""
    if are_texts(data):
        if labels is not None and len(labels) != len(data):
            raise ConfigError(
                f"labels has {len(labels)} entries for {len(data)} texts. Give as many."
            )
        data, order = text_batches(tokenizer, data, batch_size, device_of(model))
        if labels is not None:
            parts = torch.as_tensor(labels)[order.argsort()].split(batch_size)
            return list(zip(data, parts, strict=True))
    elif labels is not None:
        return [(data, torch.as_tensor(labels))]
    batches = [data] if is_single(data) else list(data)
    if not batches:
        raise ConfigError("data=[] has no batches. Give labelled development data.")
    return [(batch, _labels_in(batch)) for batch in batches]


def _labels_in(batch: Any) -> Tensor:
    """The labels in a batch; its tokens for language models."""
    values = batch if isinstance(batch, Mapping) else {}
    for name in ("labels", "label"):
        if isinstance(values.get(name), Tensor):
            return values[name]
    if isinstance(values.get("input_ids"), Tensor):
        seen = values.get("attention_mask", torch.ones_like(values["input_ids"]))
        return values["input_ids"].masked_fill(seen == 0, IGNORED)
    raise ConfigError(
        'data has a batch without "labels". Give dictionaries with labels, or one batch and labels.'
    )
