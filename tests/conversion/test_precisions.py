"""Conversion in every precision that torch computes in, on a CPU and on a GPU.

Needs torch, transformers and pytest alone, so that it runs on a machine with a GPU.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

import babn
from babn.conversion import calls

# What torch says on processors that have no bfloat16 of their own.
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore:mkldnn_matmul failed"),
]

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
HALVES = [torch.bfloat16, torch.float16]


def vit() -> nn.Module:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    return hf.ViTModel(
        hf.ViTConfig(**sizes, intermediate_size=48, image_size=16, patch_size=8, num_channels=3)
    )


def bert() -> nn.Module:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = hf.BertConfig(**sizes, intermediate_size=48, vocab_size=99)
    return hf.BertForTokenClassification(config)


class Convolved(nn.Module):
    """Multi-head attention between convolutions, which have a setting of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = (nn.Conv1d(32, 32, 3, padding=1) for _ in range(2))
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x).transpose(1, 2)
        return self.after(self.attention(x, x, x)[0].transpose(1, 2))


MODELS: dict[str, Callable[[], nn.Module]] = {"vit": vit, "bert": bert, "convolved": Convolved}


def build(name: str, device: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    """A model with weights so large that attention is far from uniform."""
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.3)
    return model.to(device, dtype)


def example(name: str, device: str, dtype: torch.dtype = torch.float32) -> Tensor | None:
    return torch.randn(2, 32, 7, device=device, dtype=dtype) if name == "convolved" else None


def converts(model: nn.Module, inputs: Any) -> None:
    babn.convert(model, babn.BeliefConfig.pairs(max_length=16), inputs)
    babn.revert(model)


@contextmanager
def matmul_precision(value: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(value)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
@pytest.mark.parametrize("name", MODELS)
def test_a_float32_model_converts_whatever_its_products_round_to(
    name: str, precision: str, device: str
) -> None:
    with matmul_precision(precision):
        converts(build(name, device), example(name, device))
        assert torch.get_float32_matmul_precision() == precision


@contextmanager
def set_to(holder: Any, value: str) -> Iterator[None]:
    before = holder.fp32_precision
    holder.fp32_precision = value
    try:
        yield
    finally:
        holder.fp32_precision = before


@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="torch < 2.9")
@pytest.mark.parametrize(
    ("device", "holder", "value"),
    [
        ("cpu", lambda: torch.backends.mkldnn.matmul, "bf16"),
        pytest.param("cuda", lambda: torch.backends.cuda.matmul, "tf32", marks=pytest.mark.gpu),
        pytest.param("cuda", lambda: torch.backends.cudnn.conv, "tf32", marks=pytest.mark.gpu),
    ],
)
@pytest.mark.parametrize("name", MODELS)
def test_the_settings_of_newer_torch_work_and_stay(
    name: str, device: str, holder: Callable[[], Any], value: str
) -> None:
    with set_to(holder(), value):
        converts(build(name, device), example(name, device))
        assert holder().fp32_precision == value


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [*HALVES, torch.float64])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_in_another_precision_converts(name: str, dtype: torch.dtype, device: str) -> None:
    converts(build(name, device, dtype), example(name, device, dtype))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", MODELS)
def test_conversion_under_autocast(name: str, dtype: torch.dtype, device: str) -> None:
    with torch.autocast(device, dtype):
        converts(build(name, device), example(name, device))


def autocast(device: str) -> AbstractContextManager[Any]:
    return torch.autocast(device, torch.bfloat16)


ARITHMETICS: dict[str, tuple[torch.dtype, Callable[[str], AbstractContextManager[Any]]]] = {
    "float32": (torch.float32, lambda _: nullcontext()),
    "high": (torch.float32, lambda _: matmul_precision("high")),
    "bfloat16": (torch.bfloat16, lambda _: nullcontext()),
    "float16": (torch.float16, lambda _: nullcontext()),
    "autocast": (torch.float32, autocast),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("name", ["vit", "convolved"])
def test_a_feature_of_small_effect_is_noticed_in_every_precision(
    name: str, arithmetic: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    softmax = calls.normalize
    monkeypatch.setattr(calls, "normalize", lambda phi, mask: softmax(1.01 * phi, mask))
    dtype, settings = ARITHMETICS[arithmetic]
    model, inputs = build(name, device, dtype), example(name, device, dtype)

    with settings(device), pytest.raises(babn.errors.ConversionError, match="outputs move by"):
        babn.convert(model, babn.BeliefConfig.pairs(max_length=16), inputs)
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
