"""Attacks on a classifier of own data."""

from pathlib import Path

import pytest
from attack_cases import FIELDS, lines, repeater

from babn.errors import ConfigError
from babn_paper.attacks.attack_run import attack
from babn_paper.attacks.plan import Plan
from babn_paper.experiments.config_files import own_experiment
from babn_paper.experiments.run import run

pytestmark = pytest.mark.thorough

FEW = {**FIELDS, "steps": 4, "data": "files"}


def test_held_out_texts_are_attacked_and_classes_have_their_names(tmp_path: Path) -> None:
    rows = [f"wonderful {i},great\nterrible {i},poor" for i in range(20)]
    (tmp_path / "my.csv").write_text("\n".join(["review,verdict", *rows]) + "\n")
    flags = {"train": str(tmp_path / "my.csv"), "text": "review", "label": "verdict"}
    run(own_experiment("classification", flags, FEW), tmp_path / "run")
    attacked = attack(
        tmp_path / "run", "textfooler", threat="average", make_attacker=repeater, examples=3
    )
    assert attacked[0].folder.describe()["classes"] == ["great", "poor"]
    plan = Plan(recipe="textfooler", threat="average", samples=3)
    assert len(lines(tmp_path / "run", plan)) == 3


def test_regression_cannot_be_attacked(tmp_path: Path) -> None:
    rows = [f"text {i},{i}" for i in range(20)]
    (tmp_path / "my.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    run(own_experiment("regression", {"train": str(tmp_path / "my.csv")}, FEW), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"task='regression' cannot be attacked.*classification"):
        attack(tmp_path / "run", "textfooler", make_attacker=repeater)
