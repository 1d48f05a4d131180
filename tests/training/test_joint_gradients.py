"""Two processes under DDP and FSDP2 have the loss and the gradients of one, noise included."""

from pathlib import Path

import joint_gradients
import pytest
import torch
from joint_gradients import CONFIGS, ROWS, gradients_of, joint_batch, loss_of, model_with

from launching import torchrun

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the first of two processes wrote."""
    folder = tmp_path_factory.mktemp("joint")
    torchrun(joint_gradients.__file__, str(folder))
    return folder


@pytest.mark.parametrize("how", ["ddp", "fsdp2"])
@pytest.mark.parametrize("method", CONFIGS)
def test_two_processes_are_as_one(method: str, how: str, folder: Path) -> None:
    model = model_with(method)
    loss = loss_of(model, joint_batch(ROWS), range(ROWS))
    loss.backward()
    found = torch.load(folder / f"{method}-{how}.pt", weights_only=True)
    torch.testing.assert_close(found.pop("loss"), loss.detach())
    expected = gradients_of(model)
    assert found.keys() == expected.keys()
    assert any(name.startswith("babn") for name in found) == (method != "softmax")
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6, msg=name)
