"""The attention method of an experiment: conversion, and the KL term of its loss.

Variational attention is part of the translation model instead of being put in by conversion. Its KL
is in the model's output and its KL weight in the model's configuration.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

import babn
from babn.conversion.override import overriding
from babn.conversion.state import belief_states
from babn.elbo import KLAnnealing, nll_factor, weighted_kl
from babn.errors import ConfigError, FormatError
from babn.files import check_files, read_object
from babn.text import quiet
from babn_paper.experiments.experiment import Experiment, LatentConfig
from babn_paper.tasks.encoded import Batch


def with_attention(
    model: nn.Module, experiment: Experiment, example: Batch, max_length: int
) -> nn.Module:
    """Converts the model to the experiment's attention method.

    Args:
        model: The unconverted model.
        experiment: Defines the method and its settings.
        example: Arguments for the dry run.
        max_length: Largest number of keys: tokens of a text, or regions of an image.
    """
    config = experiment.method_config()
    if isinstance(config, LatentConfig):
        return model
    if isinstance(config, babn.BeliefConfig) and config.noise_over == "pairs":
        config = replace(config, max_length=experiment.settings.get("max_length", max_length))
    if config.max_keys is not None and config.max_keys < max_length:
        raise ConfigError(
            f"settings.max_length={config.max_keys} is shorter than max_length={max_length}. "
            "Make them equal, or use settings.upward=heads."
        )
    return babn.convert(model, config, example)


def load_trained(folder: Path) -> Any:
    """Loads the model of a run."""
    from babn_paper.models import TranslationConfig, TranslationModel

    path = folder / "config.json"
    found = read_object(path, "Train again.")
    with quiet():
        if "babn" in found:
            return babn.load(folder)
        check_files(folder)
        if found.get("model_type") != TranslationConfig.model_type:
            raise FormatError(f"{path} does not describe a model trained by babn. Train again.")
        return TranslationModel.from_pretrained(folder)


def set_kl_weight(model: nn.Module, annealing: KLAnnealing, step: int, steps: int) -> None:
    """Sets the KL weight of a step."""
    if is_variational(model):
        model.config.kl_weight = annealing.at(step, steps)  # type: ignore[union-attr]
    else:
        annealing.apply(model, step, steps)


def get_kl_weight(model: nn.Module) -> float:
    """The current KL weight."""
    if is_variational(model):
        return float(model.config.kl_weight)  # type: ignore[union-attr,arg-type]
    return babn.get_kl_weight(model)


def kl_terms(model: nn.Module, output: Any) -> dict[str, Tensor]:
    """The KL of each attention layer in the latest forward pass, by name."""
    return {"alignments": output.kl} if is_variational(model) else babn.kl_per_layer(model)


def loss_terms(model: nn.Module, output: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """The NLL and the weighted KL of a forward pass under `joint_kl`.

    Of an example with `kl_reduction="sum"`. Otherwise the NLL is the model's loss; variational
    attention has both per word.
    """
    if is_variational(model):
        return -output.likelihood, output.kl * get_kl_weight(model)
    factor = nll_factor(model, batch, belief_states(model)[0].config.kl_reduction)
    return output.loss * factor, weighted_kl(model)


def is_per_example(model: nn.Module) -> bool:
    """Whether the loss is the negative ELBO of one example (at a KL weight of 1)."""
    return not is_variational(model) and belief_states(model)[0].config.kl_reduction == "sum"


@contextmanager
def joint_kl(model: nn.Module, weight: float) -> Iterator[None]:
    """Averages KLs over all processes and leaves them out of the loss of converted models.

    The KL of variational attention needs no averaging; it is part of the model's loss.

    Args:
        model: The model.
        weight: Factor of this process's loss.
    """
    if is_variational(model):
        yield
        return
    with babn.across_processes(model, weight), overriding(model, add_kl=False):
        yield


def is_variational(model: nn.Module) -> bool:
    """Whether attention is variational and therefore part of the model."""
    return bool(getattr(model.config, "variational", False))
