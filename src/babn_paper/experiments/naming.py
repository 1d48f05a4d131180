"""Where runs are kept, and the commands that make them."""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from babn_paper.experiments.config_files import config_name

RUNS = Path("runs")

PLACES = ("seed", "data")
"""Overrides that do not make it another experiment: the seed names a folder of its own."""

RULES = {
    "softmax": "softmax",
    "va-enum": "VA + enum",
    "va-sample": "VA + sample",
    "bam": "BAM",
    "belief": "BABN",
    "mc-dropout": "MC dropout",
    "ensemble": "softmax, ensemble",
}
"""What tables call the rules."""


def rule_name(rule: str) -> str:
    """What tables call a rule."""
    return RULES.get(rule, rule)


def mode_name(rule: str, mode: str) -> str:
    """What tables call a way to ask a model."""
    if mode != "dropout":
        return mode
    return "MC dropout" if rule == "softmax" else "sampled + dropout"


def method_name(rule: str, mode: str) -> str:
    """What comparisons call a rule that is asked in some way."""
    return f"{rule_name(rule)}, {mode_name(rule, mode)}"


def run_path(config: Path, overrides: Mapping[str, Any], seed: int, under: Path = RUNS) -> Path:
    """The folder of a run: configuration, what differs from it, and seed."""
    changes = {name: value for name, value in overrides.items() if name not in PLACES}
    name = "+".join(filter(None, [config_name(config), label(changes)]))
    return under / name / f"seed-{seed}"


def label(changes: Mapping[str, Any]) -> str:
    """Fields and their values as part of a folder's name."""
    return "+".join(f"{name}={plain(value)}" for name, value in flat(changes).items())


def command(config: str, overrides: Mapping[str, Any]) -> str:
    """The command that runs an experiment."""
    settings = [f"{name}={value}" for name, value in flat(overrides).items()]
    words = ["babn", "train", config, *(word for each in settings for word in ("--set", each))]
    return shlex.join(words)


def flat(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides with tables within as `table.name`."""
    found: dict[str, Any] = {}
    for name, value in overrides.items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{inner}": each for inner, each in value.items()}
        else:
            found[name] = value
    return found


def plain(value: Any) -> str:
    """A value as part of a folder's name."""
    return re.sub(r"[^\w.+-]", "_", str(value))
