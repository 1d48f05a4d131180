"""The error of means with mirrored samples."""

import json
from pathlib import Path

import antithetic
import pytest

pytestmark = pytest.mark.thorough


def test_errors_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(antithetic, "SEEDS", range(3))
    monkeypatch.setattr(antithetic, "SAMPLES", (4,))
    file = tmp_path / "antithetic.json"
    monkeypatch.setattr("sys.argv", ["antithetic.py", "--model", "small", "--out", str(file)])
    antithetic.main()
    found = json.loads(file.read_text())
    assert found["seeds"] == 3 and "small BERT" in found["model"]
    assert [each["level"] for each in found["levels"]][1:] == [1.0]
    for each in found["levels"]:
        assert each["antithetic"]["4"]["error"] <= each["independent"]["4"]["error"]
