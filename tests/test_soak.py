"""The soak: nothing grows in a short one, and its verdict tells growth from noise."""

import json
import random
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[1] / "tools/soak.py"


@pytest.fixture(scope="module")
def soak() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def verdict(soak: dict[str, Any], rounds: int = 200, **growth: float) -> dict[str, bool]:
    """Which quantities pass, of a made-up process that holds more of some in every round."""
    generator = random.Random(0)
    held = [
        soak["Held"](
            seconds=float(i),
            memory=int(5e8 + 3e6 * generator.random() + growth.get("memory", 0) * i),
            gpu_memory=0,
            objects=int(400_000 + 500 * (i % 4 == 0) + growth.get("objects", 0) * i),
            files=int(20 + growth.get("files", 0) * i),
            threads=3 + (i % 7 == 0),
        )
        for i in range(rounds)
    ]
    return {name: each["passed"] for name, each in soak["judge"](held).items()}


def test_noise_is_no_growth(soak: dict[str, Any]) -> None:
    assert all(verdict(soak).values())


@pytest.mark.parametrize(("name", "amount"), [("memory", 1e5), ("objects", 1), ("files", 0.02)])
def test_growth_is_reported(name: str, amount: float, soak: dict[str, Any]) -> None:
    """A tiny model, one object, or a file now and then, that is kept in every round."""
    assert [n for n, passed in verdict(soak, **{name: amount}).items() if not passed] == [name]


def test_warming_up_is_no_growth(soak: dict[str, Any]) -> None:
    held = [soak["Held"](0.0, 10**6 * min(i, 20), 0, 100 * min(i, 20), 5, 3) for i in range(100)]
    assert all(each["passed"] for each in soak["judge"](held).values())


@pytest.mark.slow
def test_nothing_grows_in_a_minute(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(SCRIPT),
        "--minutes",
        "1.5",
        "--out",
        str(tmp_path / "soak.json"),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads((tmp_path / "soak.json").read_text())
    assert written["rounds"] > 4 and written["versions"]["torch"]
