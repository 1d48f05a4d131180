"""Modules that importing the metrics loads."""

import subprocess
import sys

import pytest

from babn import metrics


def python(code: str) -> str:
    """What a fresh interpreter prints."""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_every_exported_name_exists() -> None:
    assert len(metrics.__all__) == len(set(metrics.__all__))
    assert all(hasattr(metrics, name) for name in metrics.__all__)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match=r"babn.metrics.*'recall'"):
        metrics.recall  # noqa: B018


WITHOUT_TORCHMETRICS = """
import sys
sys.modules["torchmetrics"] = None
from babn.errors import MissingExtraError

for use in (
    "import babn.metrics; babn.metrics.streaming",
    "from babn.metrics import streaming",
    "from babn.metrics.streaming import BrierScore",
):
    try:
        exec(use)
    except MissingExtraError as error:
        print(error)
"""


@pytest.mark.thorough
def test_streaming_without_torchmetrics_names_the_remedy() -> None:
    expected = "babn.metrics.streaming needs torchmetrics: pip install 'babn[metrics]'"
    assert python(WITHOUT_TORCHMETRICS).splitlines() == [expected] * 3
