"""A model's attention in an experiment: put in by conversion, or a part of the model.

Variational attention of the translation model is the one that is part of a model; its divergence
stands in the model's output, and the weight in its configuration.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

import babn
from babn.conversion.override import overriding
from babn.elbo import KLAnnealing, weighted_kl
from babn.errors import ConfigError, FormatError, one_line
from babn.files import check_files, parse_json
from babn.text.pretrained import quiet
from babn_paper.experiments.experiment import Experiment
from babn_paper.experiments.latent import LatentConfig
from babn_paper.tasks.encoded import Batch


def with_attention(
    model: nn.Module, experiment: Experiment, example: Batch, max_length: int
) -> nn.Module:
    """The model with the experiment's rule, whose maps are as long as what it looks at.

    Args:
        model: The model, not converted.
        experiment: Has the rule.
        example: Arguments for the dry run.
        max_length: Tokens at which texts are cut, or regions of an image if there are more.
    """
    config = experiment.rule_config()
    if isinstance(config, LatentConfig):
        return model
    if isinstance(config, babn.BeliefConfig) and "max_length" not in experiment.settings:
        config = replace(config, max_length=max_length)
    if config.max_keys is not None and config.max_keys < max_length:
        raise ConfigError(
            f"settings.max_length={config.max_keys} is shorter than max_length={max_length}. "
            "Make them equal, or take settings.upward=heads."
        )
    return babn.convert(model, config, example)


def load_trained(folder: Path) -> Any:
    """The model of a run."""
    from babn_paper.models import TranslationConfig, TranslationModel

    path = folder / "config.json"
    try:
        found = parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise FormatError(f"{path} cannot be read: {one_line(error)}. Train again.") from error
    with quiet():
        if isinstance(found, dict) and "babn" in found:
            return babn.load(folder)
        check_files(folder)
        if not isinstance(found, dict) or found.get("model_type") != TranslationConfig.model_type:
            raise FormatError(f"{path} is of no model that babn has trained. Train again.")
        return TranslationModel.from_pretrained(folder)


def set_weight(model: nn.Module, annealing: KLAnnealing, step: int, steps: int) -> None:
    """Sets the divergence's weight for a step."""
    if is_latent(model):
        model.config.kl_weight = annealing.at(step, steps)  # type: ignore[union-attr]
    else:
        annealing.apply(model, step, steps)


def get_weight(model: nn.Module) -> float:
    """The divergence's weight."""
    if is_latent(model):
        return float(model.config.kl_weight)  # type: ignore[union-attr,arg-type]
    return babn.get_kl_weight(model)


def divergences(model: nn.Module, output: Any) -> dict[str, Tensor]:
    """The divergence of each attention call of a training pass, by name."""
    return {"alignments": output.kl} if is_latent(model) else babn.kl_per_layer(model)


def loss_terms(model: nn.Module, output: Any) -> tuple[Tensor, Tensor]:
    """The NLL and the weighted KL of a forward pass under `joint_divergence`."""
    if is_latent(model):
        return -output.likelihood, output.kl * get_weight(model)
    return output.loss, weighted_kl(model)


@contextmanager
def joint_divergence(model: nn.Module, weight: float) -> Iterator[None]:
    """Averages KLs over all processes, and leaves them out of the loss of converted models.

    The KL of variational attention needs no averaging, and is a part of the model's loss.

    Args:
        model: The model.
        weight: What the loss of this process is multiplied by.
    """
    if is_latent(model):
        yield
        return
    with babn.across_processes(model, weight), overriding(model, add_kl=False):
        yield


def is_latent(model: nn.Module) -> bool:
    """Whether attention is variational, and so a part of the model."""
    return bool(getattr(model.config, "variational", False))
