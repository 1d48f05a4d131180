"""Fits the noise level and the temperature of a converted model to development data."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Real
from torch import Tensor, nn

from babn.elbo import IGNORED
from babn.errors import ConfigError, SamplesError
from babn.evaluation.temperature_scaling import bounded_temperature
from babn.metrics.scores import accuracy, nll
from babn.prediction import temperature as stored
from babn.prediction.batches import are_texts, check_tokenizer, device_of, is_single, text_batches
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
        residual: For regression, the standard deviation of what the samples do not explain.
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
        numbers = self.trials[0].residual is not None
        rows = [
            f"{trial.level:8.3f} {(trial.residual or trial.temperature):12.3f} {trial.nll:8.4f}"
            + ("" if trial.accuracy is None else f" {trial.accuracy:9.1%}")
            + ("  <- chosen" if trial.level == self.level else "")
            for trial in self.trials
        ]
        fitted = "   residual" if numbers else "temperature"
        last = "" if self.trials[0].accuracy is None else "  accuracy"
        return "\n".join([f"   level  {fitted}      NLL{last}", *rows])


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
    max_nll_rise: float | None = None,
    memory: float | None = None,
    progress: bool = True,
) -> NoiseTuning:
    """Fits the model's noise level and temperature to development data, without gradients.

    Chooses the level and temperature with the lowest negative log likelihood of the sampled
    prediction, among the levels whose accuracy drops by no more than allowed. Level 0 is among
    them, so the development NLL is never worse than that of the deterministic model with
    temperature scaling. All levels use the same random numbers.

    Args:
        model: A converted model, fine-tuned after conversion or not; its level and temperature are
            changed, and saved with it.
        data: A batch, an iterable of batches or a list of texts, as for `predict`. Language models
            are fitted to the tokens of their texts.
        labels: The correct classes, for texts or one batch that does not hold them as `labels`; or
            the numbers of a regression, as floats, for which the level is fitted together with the
            standard deviation of what the samples do not explain (`babn.get_residual`).
        samples: Number of attention samples.
        seed: Seed of the samples.
        tokenizer: The model's tokenizer, for texts.
        batch_size: Texts in one batch.
        temperature: Whether to fit a temperature with the level. Without, and for language models,
            the model's temperature stays. If every prediction is correct, it is at least 1.
        max_accuracy_drop: Largest drop in accuracy against no noise, as a share of all examples.
        max_nll_rise: If given, chooses the largest level whose NLL exceeds that without noise by at
            most this share (0.003 in training-free Bayesianization, arXiv:2412.05723).
        memory: Gigabytes that attention may take in one forward pass, as for `predict`.
        progress: Whether to show a progress bar, if tqdm is installed.
    """
    check_count("samples", samples, SamplesError)
    check_at_least("max_accuracy_drop", max_accuracy_drop, 0.0)
    if max_nll_rise is not None:
        check_at_least("max_nll_rise", max_nll_rise, 0.0)
    settings = {"seed": seed, "memory": memory}
    if are_texts(data):
        check_tokenizer(tokenizer)
        batches = _text_batches(model, tokenizer, data, labels, batch_size)
    else:
        batches = _batches(data, None if labels is None else torch.as_tensor(labels))
    shown = bar("noise levels", len(FIRST_LEVELS) + 1 + 2 * len(REFINEMENTS), progress)
    limits = max_accuracy_drop, max_nll_rise
    search = _Search(model, batches, samples, settings, temperature, *limits, shown)
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


@dataclass
class _Search:
    """Tries levels and keeps their results."""

    model: nn.Module
    batches: list["_Batch"]
    samples: int
    settings: dict[str, Any]
    fits_temperature: bool
    max_accuracy_drop: float
    max_nll_rise: float | None
    bar: Any
    tried: dict[float, Trial] = field(default_factory=dict)

    def run(self) -> Trial:
        """Tries the first levels, extends the range while the best is at its end, and refines."""
        for level in (0.0, *FIRST_LEVELS):
            self.trial(level)
        while (further := self._beyond(self.best)) is not None:
            self.trial(further)
        for factor in REFINEMENTS if self.best.level else ():
            centre = self.best.level
            for level in (centre / factor, centre * factor):
                self.trial(level)
        return self.best

    @property
    def best(self) -> Trial:
        """The best of the trials so far; the largest level if a rise of the NLL is allowed."""
        admitted = filter(self._is_admitted, self.tried.values())
        if self.max_nll_rise is not None:
            return max(admitted, key=lambda trial: trial.level)
        return min(admitted, key=lambda trial: (trial.nll, trial.level))

    def _is_admitted(self, trial: Trial) -> bool:
        """Whether accuracy and, if it is limited, NLL are close enough to those without noise."""
        without = self.tried[0.0]
        accurate = True
        if trial.accuracy is not None and without.accuracy is not None:
            accurate = trial.accuracy >= without.accuracy - self.max_accuracy_drop - 1e-9
        rise = self.max_nll_rise
        return accurate and (rise is None or trial.nll <= without.nll * (1 + rise))

    def _beyond(self, best: Trial) -> float | None:
        """The next level outside the range, if the best one is at its end."""
        lowest, highest = min(level for level in self.tried if level), max(self.tried)
        if best.level <= lowest and lowest > LOWEST:
            return lowest / 2
        return highest * 2 if best.level == highest < HIGHEST else None

    def trial(self, level: float) -> None:
        """Computes the result of a level, once."""
        if level in self.tried:
            return
        stored.set_noise_level(self.model, level)
        if self.fits_temperature and self.batches[0].labels.ndim == 1:
            stored.set_temperature(self.model, 1.0)
        with warnings.catch_warnings():  # low levels are among those that are tried
            warnings.filterwarnings("ignore", "All samples give nearly the same prediction")
            self.tried[level] = self._rated(level)
        self.bar.update()

    def _rated(self, level: float) -> Trial:
        """The result of a level, by the kind of the labels: numbers, tokens or classes."""
        labels = self.batches[0].labels
        if labels.is_floating_point():
            return self._of_numbers(level)
        return self._of_tokens(level) if labels.ndim > 1 else self._of_classes(level)

    def _predict(self, inputs: Any, output: Callable[[Any], Tensor] | None = None) -> Prediction:
        samples = self.samples if stored.get_noise_level(self.model) else 1
        return predict(self.model, inputs, samples, **self.settings, output=output)

    def _of_numbers(self, level: float) -> Trial:
        """The result of a regression."""
        found = [self._predict(batch.inputs) for batch in self.batches]
        values = torch.cat([_one_number(each) for each in found], dim=1)
        labels = torch.cat([batch.labels.flatten().cpu() for batch in self.batches])
        residual = fit_residual(values, labels)
        loss = float(mixture_nll(values, labels, residual).mean())
        return Trial(level, stored.get_temperature(self.model), loss, None, residual)

    def _of_classes(self, level: float) -> Trial:
        """The result of a classifier."""
        found = Prediction.cat([self._predict(batch.inputs).to("cpu") for batch in self.batches])
        check_classes(found, "noise is tuned by the likelihood of classes or tokens")
        labels = torch.cat([batch.labels.cpu() for batch in self.batches])
        temperature = stored.get_temperature(self.model)
        if self.fits_temperature:
            temperature = bounded_temperature(found, labels)
            found = found.tempered(temperature)
        return Trial(level, temperature, nll(found, labels), accuracy(found, labels))

    def _of_tokens(self, level: float) -> Trial:
        """The result of a language model, without accuracy."""
        log_probs = torch.cat([self._log_probs(batch) for batch in self.batches])
        if not len(log_probs):
            raise ConfigError("data has no labels that count. Give labelled batches.")
        return Trial(level, stored.get_temperature(self.model), -float(log_probs.mean()), None)

    def _log_probs(self, batch: "_Batch") -> Float[Tensor, "token"]:
        """Log probability of each token of a language model."""
        ahead = _predicts_next(self.model)
        labels = batch.labels[:, 1:] if ahead else batch.labels
        temperature = stored.get_temperature(self.model)

        def log_probs(output: Any) -> Tensor:
            logits = find_logits(output).float()
            logits = (logits[:, :-1] if ahead else logits) / temperature
            index = labels.clamp(min=0).to(logits.device)
            index = index.repeat(len(logits) // len(index), 1)
            return logits.log_softmax(-1).gather(-1, index.unsqueeze(-1)) * temperature

        found = self._predict(batch.inputs, log_probs).sample_logits
        mean = found.squeeze(-1).double().logsumexp(0).cpu() - math.log(len(found))
        return mean[labels.cpu() != IGNORED]


@dataclass(frozen=True)
class _Batch:
    """Inputs of a model and their labels."""

    inputs: Any
    labels: Real[Tensor, "row *token"]


def _text_batches(
    model: nn.Module, tokenizer: Any, texts: Any, labels: Any, size: int
) -> list[_Batch]:
    """Texts in batches, with their labels; without labels those of a language model."""
    encoded, order = text_batches(tokenizer, texts, size, device_of(model))
    if labels is None:
        return _batches(encoded, None)
    if len(labels) != len(texts):
        raise ConfigError(f"labels has {len(labels)} entries for {len(texts)} texts. Give as many.")
    given = torch.as_tensor(labels)[order.argsort()]
    return [_Batch(*pair) for pair in zip(encoded, given.split(size), strict=True)]


def _batches(data: Any, labels: Tensor | None) -> list[_Batch]:
    if labels is not None:
        return [_Batch(data, labels)]
    batches = [data] if is_single(data) else list(data)
    if not batches:
        raise ConfigError("data=[] has no batches. Give labelled development data.")
    return [_Batch(batch, _labels_in(batch)) for batch in batches]


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


def _one_number(prediction: Prediction) -> Float[Tensor, "sample example"]:
    """Samples of the one number that a regression predicts for each example."""
    found = prediction.sample_logits
    if found.ndim != 3 or found.shape[-1] != 1:
        raise ConfigError(
            f"labels are floats, and the model's output has shape {tuple(found.shape[1:])}. Give "
            "classes as integers, or a model with one output."
        )
    return found.squeeze(-1).cpu()


def _predicts_next(model: nn.Module) -> bool:
    """Whether the outputs at a token predict the token after it."""
    config = getattr(model, "config", None)
    generates = getattr(model, "can_generate", lambda: False)()
    return bool(generates) and not getattr(config, "is_encoder_decoder", False)
