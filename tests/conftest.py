"""What tests of several folders need."""

from collections.abc import Iterator

import jaxtyping
import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "slow", max_examples=500, deadline=None, suppress_health_check=list(HealthCheck)
)
"""`--hypothesis-profile=slow`, as in `make fuzz`: many more examples, others each time."""


@pytest.fixture
def as_installed() -> Iterator[None]:
    """Without the type checks of the test run, which would come before babn's own."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
