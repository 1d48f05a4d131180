"""Names of attention methods in tables and of run folders."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from babn_paper.experiments.config_files import config_name, flat, plain

RUNS = Path("runs")

PLACES = ("seed", "data")
"""Overrides that are not part of an experiment's folder name; the seed has its own folder."""

METHOD_NAMES = {
    "softmax": "softmax",
    "va-enum": "VA + enum",
    "va-sample": "VA + sample",
    "bam": "BAM",
    "belief": "BABN",
    "belief/paper": "BABN (paper)",
    "belief/default": "BABN (default)",
    "belief/released": "BABN (released)",
    "mc-dropout": "MC dropout",
    "ensemble": "softmax, ensemble",
}
"""Names of the attention methods in tables, in the order of the tables."""


PRESETS = {
    "belief/paper": "is the method as published",
    "belief/default": "is this library's default",
    "belief/released": "has the settings of the authors' code",
    "belief": "is BeliefConfig.pairs, neither the published method nor the default: one variable "
    "for each query-key pair, normalised scores, and truncated noise with its own mean",
}
"""Descriptions of the configurations of BABN in tables."""


def preset_note(methods: Iterable[str]) -> str:
    """Describes the configurations of BABN in a table; empty if there are none.

    Args:
        methods: Attention methods, as `method_of` names them.
    """
    methods = set(methods)
    known = [f"{METHOD_NAMES[each]} {text}" for each, text in PRESETS.items() if each in methods]
    return "; ".join(known) + "." if known else ""


def method_of(experiment: Mapping[str, Any]) -> str:
    """The attention method of an experiment, with its preset if it has one."""
    preset = experiment.get("preset", "")
    return f"{experiment['method']}/{preset}" if preset else str(experiment["method"])


def attention_name(method: str) -> str:
    """The name of an attention method in tables."""
    return METHOD_NAMES.get(method, method)


def mode_name(method: str, mode: str) -> str:
    """The name of a prediction mode in tables."""
    if mode != "dropout":
        return mode
    return "MC dropout" if method == "softmax" else "sampled + dropout"


def method_name(method: str, mode: str) -> str:
    """The name of an attention method in a prediction mode."""
    return f"{attention_name(method)}, {mode_name(method, mode)}"


def run_path(config: Path, overrides: Mapping[str, Any], seed: int, under: Path = RUNS) -> Path:
    """The folder of a run, named by configuration, overrides and seed."""
    changes = {name: value for name, value in overrides.items() if name not in PLACES}
    name = "+".join(filter(None, [config_name(config), label(changes)]))
    return under / name / f"seed-{seed}"


def label(changes: Mapping[str, Any]) -> str:
    """Fields and values as part of a folder name."""
    return "+".join(f"{name}={plain(value)}" for name, value in flat(changes).items())
