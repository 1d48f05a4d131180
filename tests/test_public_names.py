"""The names that users write, and how they call them."""

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import babn

BELIEF_DEFAULTS = {
    "noise_over": "keys",
    "rho": 2.0,
    "beta": 1.0,
    "noise": "exact",
    "prior_hidden": 10,
    "kl_weight": 0.01,
    "kl_reduction": "mean",
}
PAIRS_DEFAULTS = {
    "noise_over": "pairs",
    "rho": 12.0,
    "sigma": 1e-6,
    "beta": 1.0,
    "scores": "normalized",
    "upward": "keys",
    "max_length": 512,
    "noise": "truncated",
    "prior_hidden": 10,
    "kl_weight": 0.003,
    "kl_reduction": "mean",
}
REQUIRED = inspect.Parameter.empty


def python(code: str) -> str:
    """What a fresh interpreter prints."""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_every_exported_name_exists() -> None:
    assert len(babn.__all__) == len(set(babn.__all__))
    assert all(hasattr(babn, name) for name in babn.__all__)


def listed(module: Any) -> set[str]:
    """What `dir` lists, without what every module has."""
    return {name for name in dir(module) if not name.startswith("__")}


def test_dir_lists_every_public_name_and_nothing_else() -> None:
    assert listed(babn) == set(babn.__all__) and "__version__" in dir(babn)
    assert listed(babn.plots) == set(babn.plots.__all__)
    assert listed(babn.metrics) == {*babn.metrics.__all__, "streaming"}
    for module in (babn, babn.plots, babn.metrics):
        assert all(hasattr(module, name) for name in dir(module))


def test_every_plot_of_the_library_is_public() -> None:
    (folder,) = babn.plots.__path__
    text = "\n".join(file.read_text() for file in Path(folder).glob("*.py"))
    drawn = set(re.findall(r"^@(?:style\.)?drawing\ndef (\w+)", text, re.MULTILINE))
    assert drawn == set(babn.plots.__all__) - {"SINGLE", "DOUBLE"}


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'belief'"):
        babn.belief  # noqa: B018


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (babn.inspect, {"model": REQUIRED, "example_inputs": None}),
        (babn.convert, {"model": REQUIRED, "config": None, "example_inputs": None}),
        (babn.revert, {"model": REQUIRED}),
        (babn.set_kl_weight, {"model": REQUIRED, "weight": REQUIRED}),
        (babn.kl_per_layer, {"source": REQUIRED}),
        (babn.predict, {"model": REQUIRED, "data": REQUIRED, "samples": 10, "seed": 0}),
        (babn.attention_maps, {"model": REQUIRED, "data": REQUIRED}),
        (babn.sampling, {"model": REQUIRED, "seed": None}),
        (babn.load, {"folder": REQUIRED}),
        (babn.save_adapter, {"model": REQUIRED, "folder": REQUIRED}),
        (babn.load_adapter, {"model": REQUIRED, "folder": REQUIRED}),
        (babn.distributions.weibull_gamma, {"q": REQUIRED, "p": REQUIRED}),
        (babn.distributions.Weibull, {"k": REQUIRED, "log_lam": REQUIRED}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_signatures_begin_as_documented(function: Any, parameters: dict[str, Any]) -> None:
    found = {n: p.default for n, p in inspect.signature(function).parameters.items()}
    begin = list(found.items())[: len(parameters)]
    assert begin == list(parameters.items())


def test_further_arguments_are_optional() -> None:
    for function in (babn.inspect, babn.predict, babn.load, babn.load_adapter):
        variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        further = list(inspect.signature(function).parameters.values())[2:]
        assert all(p.default is not REQUIRED or p.kind in variable for p in further)


def test_belief_configuration() -> None:
    assert babn.BeliefConfig(**BELIEF_DEFAULTS) == babn.BeliefConfig()
    assert babn.BeliefConfig(**PAIRS_DEFAULTS) == babn.BeliefConfig.pairs()
    presets = babn.BeliefConfig.paper(), babn.BeliefConfig.released_settings()
    assert all(preset.noise_over == "pairs" for preset in presets)
    assert len({babn.BeliefConfig(), babn.BeliefConfig.pairs(), *presets}) == 4


def test_bam_configuration() -> None:
    assert babn.BamConfig(family="weibull", k=10.0) == babn.BamConfig()


def test_predictions_and_maps_have_their_parts() -> None:
    found = babn.Prediction(torch.randn(4, 2, 3))
    for name in ("probs", "sample_probs", "entropy", "mutual_information", "p_value", "std",
                 "disagreement"):  # fmt: skip
        assert torch.is_tensor(getattr(found, name))
    assert {"name", "mean", "relative_std"} <= set(babn.AttentionMap.__dataclass_fields__)


def test_trainer_is_one_of_transformers() -> None:
    from transformers import Trainer

    assert issubclass(babn.BeliefTrainer, Trainer)
    assert issubclass(babn.BeliefTrainer, babn.BeliefTrainerMixin)
    assert callable(babn.KLAnnealing().at)


FRESH = """
import sys, babn, babn.metrics, babn.plots, babn.kernels.dispatch, babn_paper.tasks.catalogue
assert babn.plots.SINGLE == 3.3 and babn_paper.tasks.catalogue.task_names()
print([module for module in {heavy} if module in sys.modules])
sys.modules["transformers"] = None
try:
    babn.BeliefTrainer
except babn.errors.MissingExtraError as error:
    print(error)
"""
"""One interpreter for both tests, since importing torch takes seconds."""


@pytest.fixture(scope="module")
def fresh() -> list[str]:
    """Heavy modules that importing babn imports, and the error without transformers."""
    heavy = ["transformers", "peft", "typer", "accelerate", "scipy", "sklearn"]
    heavy += ["torchmetrics", "matplotlib", "triton"]
    return python(FRESH.format(heavy=heavy)).splitlines()


def test_imports_are_light(fresh: list[str]) -> None:
    """The library, its metrics, plots and kernels, and the list of the paper's tasks."""
    assert fresh[0] == "[]"


def test_missing_extras_are_named(fresh: list[str]) -> None:
    assert "pip install 'babn[transformers]'" in fresh[1]
