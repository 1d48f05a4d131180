"""Files with the features that a model's last layer receives, for methods of the last layer."""

from pathlib import Path

from torch import nn

from babn.prediction.features import features, find_head
from babn.tensor_files import read_tensors, write_tensors
from babn_paper.method_comparison.interface import labels_of
from babn_paper.method_comparison.trained_models import SOFTMAX, Batches, Models, Problem


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
        tensors[f"{name}/input"] = features(model, batches, head)[-1].half()
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
