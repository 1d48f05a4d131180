"""What every test of training begins with."""

from collections.abc import Iterator

import pytest
import torch
from accelerate.state import AcceleratorState, GradientState, PartialState
from transformers.utils import logging


@pytest.fixture(autouse=True)
def fresh_start() -> Iterator[None]:
    """A fixed seed, and none of the settings that accelerate keeps for the whole process."""
    logging.disable_progress_bar()
    torch.manual_seed(0)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    PartialState._reset_state()
