"""A base is recognised by all of its weights, whatever holds them."""

import copy
from dataclasses import asdict
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn

from babn.fingerprint import Difference, Fingerprint, compare, fingerprint

SAME = Difference([], [])


class Base(nn.Module):
    """A parameter of each kind: tied, in half precision, a buffer that is saved and one not."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(5, 4)
        self.first = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("positions", torch.arange(4.0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.first(self.embedding(x))))


def saved(model: nn.Module) -> Fingerprint:
    """As it comes back from a file."""
    return Fingerprint(**asdict(fingerprint(model)))


def test_every_tensor_that_is_saved_counts() -> None:
    assert set(fingerprint(Base()).weights) == set(Base().state_dict())


@pytest.mark.parametrize("name", [n for n in Base().state_dict() if n != "head.weight"])
def test_one_changed_number_is_named(name: str) -> None:
    before, model = saved(Base()), Base()
    changed = model.state_dict()[name]
    changed.view(-1)[-1] += 1 if not changed.is_floating_point() else 1e-6
    tied = ["embedding.weight", "head.weight"]
    assert compare(before, model).changed == (tied if name in tied else [name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("other", [torch.float32, torch.bfloat16, torch.float16])
def test_the_precision_of_a_base_may_change(dtype: torch.dtype, other: torch.dtype) -> None:
    before, model = saved(Base().to(dtype)), Base().to(dtype).to(other)
    assert compare(before, model) == SAME
    assert compare(before, model.float()) == SAME
    with torch.no_grad():
        model.first.weight[0, 0] *= 1.02
    assert compare(before, model).changed == ["first.weight"]


def test_weights_that_were_tied_may_be_copies() -> None:
    model = Base()
    model.head.weight = nn.Parameter(model.embedding.weight.detach().clone())
    assert compare(saved(Base()), model) == SAME


def test_tensors_of_one_side_are_named() -> None:
    model = Base()
    model.more = nn.Linear(1, 1, bias=False)
    assert compare(saved(Base()), model).changed == ["more.weight"]
    assert compare(saved(model), Base()).changed == ["more.weight"]


def test_another_shape_of_the_same_bytes_is_another_tensor() -> None:
    model = Base()
    model.first.weight = nn.Parameter(model.first.weight.detach().reshape(2, 8))
    assert compare(saved(Base()), model).changed == ["first.weight"]


@pytest.mark.parametrize("swapped", [False, True])
def test_weights_that_are_elsewhere_are_not_verified(swapped: bool) -> None:
    model = Base()
    model.first.to("meta")
    one, other = (model, Base()) if swapped else (Base(), model)
    assert compare(saved(one), other) == Difference([], ["first.weight", "first.bias"])


def adapted(to_save: list[str] | None = None) -> Any:
    lora = LoraConfig(target_modules=["first"], modules_to_save=to_save)
    return get_peft_model(Base(), lora).base_model.model


def test_adapters_are_told_from_the_base() -> None:
    assert compare(saved(Base()), adapted()) == Difference([], ["the adapters"])
    assert compare(saved(adapted()), Base()) == Difference([], ["the adapters"])
    model = adapted()
    assert compare(saved(model), copy.deepcopy(model)) == SAME
    before = saved(model)
    with torch.no_grad():
        model.first.lora_B["default"].weight += 1
    assert compare(before, model).changed == ["the adapters"]


def test_of_a_module_that_adapters_copy_the_trained_copy_counts() -> None:
    model = adapted(["norm"])
    before = saved(model)
    assert "norm.weight" in before.weights and compare(before, Base()).changed == []
    with torch.no_grad():
        model.norm.modules_to_save["default"].weight += 1
    assert compare(saved(model), Base()).changed == ["norm.weight"]


def test_a_sharded_tensor_is_not_verified() -> None:
    dist = pytest.importorskip("torch.distributed")
    from torch.distributed.tensor import DTensor, Shard, init_device_mesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = Base()
        mesh = init_device_mesh("cpu", (1,))
        parts = DTensor.from_local(model.first.weight.detach(), mesh, [Shard(0)])
        model.first.weight = nn.Parameter(parts)
        assert compare(saved(Base()), model) == Difference([], ["first.weight"])
    finally:
        dist.destroy_process_group()
