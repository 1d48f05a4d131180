"""The last linear layer of a classifier, and the features that it receives."""

from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from babn.errors import ConfigError
from babn.methods.interface import labels_of
from babn.methods.models import SOFTMAX, Batches, Models, Problem
from babn.prediction.batches import TARGETS, device_of, placed_batches
from babn.prediction.modes import evaluating
from babn.tensor_files import read_tensors, write_tensors
from babn.training.freezing import HEADS


def find_head(model: nn.Module) -> tuple[str, nn.Linear]:
    """Path and module of the last linear layer, inside the head if the model names one."""
    layers = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    inside = [name for name in layers if set(name.split(".")) & set(HEADS)]
    if not layers:
        raise ConfigError(f"{type(model).__name__} has no linear layer. Give a classifier.")
    path = (inside or list(layers))[-1]
    return path, layers[path]


def features(
    model: nn.Module, head: nn.Module, batches: Batches
) -> Float[Tensor, "example feature"]:
    """What a head receives for all batches, on the CPU."""
    found: list[Tensor] = []

    def keep(_: nn.Module, args: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
        found.append(next(iter((*args, *named.values()))).detach().float().cpu())

    hook = head.register_forward_pre_hook(keep, with_kwargs=True)
    try:
        with torch.no_grad(), evaluating(model):
            for batch in placed_batches(batches, device_of(model)):
                model(**{name: value for name, value in batch.items() if name not in TARGETS})
    finally:
        hook.remove()
    return torch.cat(found)


def save_features(models: Models, seed: int, tests: dict[str, Batches], path: Path) -> None:
    """Writes the head of the deterministic model and its features, for methods of the last layer.

    Args:
        models: The trained models.
        seed: Seed of the model.
        tests: Batches to predict later, by name.
        path: A safetensors file, which `load_features` reads.
    """
    model = models.get(SOFTMAX, seed)
    _, head = find_head(model)
    problem = models.problem
    parts = {"training": problem.training, "development": problem.development, **tests}
    tensors = {"/weight": head.weight, "/bias": head.bias}
    for name, batches in parts.items():
        tensors[f"{name}/input"] = features(model, head, batches).half()
        tensors[f"{name}/labels"] = labels_of(batches)
    write_tensors(path, tensors)


def load_features(path: Path) -> tuple[Problem, dict[str, Batches]]:
    """The problem whose model is the trained head of `save_features`, and the tests."""
    tensors, _ = read_tensors(path)
    weights = {"weight": tensors.pop("/weight"), "bias": tensors.pop("/bias")}
    classes, width = weights["weight"].shape
    parts: dict[str, Batches] = {
        name: [{"input": tensors[f"{name}/input"].float(), "labels": tensors[f"{name}/labels"]}]
        for name in sorted({key.rpartition("/")[0] for key in tensors})
    }

    def train(model: nn.Module, *_: object) -> None:
        model.load_state_dict(weights)

    problem = Problem(
        lambda: nn.Linear(width, classes), train, parts.pop("training"), parts.pop("development")
    )
    return problem, parts
