"""What tests of several folders need."""

import gc
import importlib
from collections.abc import Iterator
from pathlib import Path

import jaxtyping
import pytest
from hypothesis import HealthCheck, settings

from shape_checks import check_cheaply

check_cheaply()

# Times depend on what else runs on the machine.
settings.register_profile("timeless", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("timeless")
settings.register_profile(
    "slow", max_examples=500, deadline=None, suppress_health_check=list(HealthCheck)
)
"""`--hypothesis-profile=slow`, as in `make fuzz`: many more examples, others each time."""


THOROUGH = "pytestmark = pytest.mark.thorough\n"


def pytest_sessionstart(session: pytest.Session) -> None:
    """Imports transformers before any module of babn, where tests run.

    Libraries that a module with checked shapes is the first to import are compiled anew. The
    process that distributes the tests does without.
    """
    if not session.config.getoption("numprocesses", None):
        importlib.import_module("transformers.trainer")


def pytest_collection_finish() -> None:
    """Exempts what is imported by now from garbage collection, a tenth of the time."""
    gc.freeze()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Does not import files of thorough tests in runs without them."""
    left_out = "not thorough" in config.option.markexpr and collection_path.suffix == ".py"
    return True if left_out and THOROUGH in collection_path.read_text() else None


@pytest.fixture
def as_installed() -> Iterator[None]:
    """Without the type checks of the test run, which would come before babn's own."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
