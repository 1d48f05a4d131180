"""Models that several files attack."""

from pathlib import Path

import pytest
from attack_cases import train


@pytest.fixture(scope="session")
def belief_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With much noise, so that few samples show it."""
    folder = tmp_path_factory.mktemp("runs") / "belief"
    return train(folder, method="belief", settings={"rho": 0.5})


@pytest.fixture(scope="session")
def softmax_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("runs") / "softmax", method="softmax")
