"""What tests of several folders need."""

from collections.abc import Iterator

import jaxtyping
import pytest


@pytest.fixture
def as_installed() -> Iterator[None]:
    """Without the type checks of the test run, which would come before babn's own."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
