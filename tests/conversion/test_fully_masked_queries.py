"""Queries that see no key: all else is still compared."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor, nn

import babn
from babn import errors
from babn.conversion import calls
from models import CASES, TEXT, enlarge, token_batch

pytestmark = pytest.mark.thorough


class Attention(nn.Module):
    """Attention in which padding neither sees nor is seen."""

    def __init__(self, outputs: str) -> None:
        super().__init__()
        self.outputs = outputs
        self.inner = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        hidden = padding[:, None] | padding[:, :, None]
        if self.outputs == "NaN":  # as torch has it where it makes weights
            return self.inner(x, x, x, attn_mask=hidden.repeat_interleave(4, 0))[0]
        x = x.unsqueeze(1)
        if self.outputs == "zeros":
            return F.scaled_dot_product_attention(x, x, x, ~hidden[:, None])[:, 0]
        scores = torch.zeros(hidden.shape).masked_fill(hidden, torch.finfo(x.dtype).min)
        return F.scaled_dot_product_attention(x, x, x, scores[:, None])[:, 0]


def batch() -> dict[str, Tensor]:
    padding = torch.zeros(2, 6, dtype=torch.bool)
    padding[1, :2] = True
    x = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(0))
    return {"x": x, "padding": padding}


def off_by_a_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands for a feature of attention that conversion does not know."""
    softmax = calls.normalize
    monkeypatch.setattr(calls, "normalize", lambda phi, mask: softmax(1.01 * phi, mask))


OUTPUTS = ["zeros", "uniform", "NaN"]


@pytest.mark.parametrize("outputs", OUTPUTS)
def test_what_a_model_gives_them_does_not_matter(outputs: str) -> None:
    model = enlarge(Attention(outputs), 0.5).eval()

    assert babn.inspect(model, batch()).calls == 1


@pytest.mark.parametrize("outputs", OUTPUTS)
def test_a_feature_that_is_not_reproduced_is_noticed_beside_them(
    outputs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = enlarge(Attention(outputs), 0.5).eval()
    off_by_a_little(monkeypatch)

    with pytest.raises(errors.ConversionError, match="outputs move by"):
        babn.inspect(model, batch())


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("right", [True, False], ids=["reproduced", "not reproduced"])
def test_left_padding_of_a_decoder(
    attention: str, right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = hf.LlamaConfig(**TEXT, attn_implementation=attention)
    model, example = enlarge(hf.LlamaForCausalLM(config), 0.15).eval(), token_batch()
    example["attention_mask"] = example["attention_mask"].flip(1)

    if right:
        assert babn.inspect(model, example).calls == 3
        return
    off_by_a_little(monkeypatch)
    with pytest.raises(errors.ConversionError, match="outputs move by"):
        babn.inspect(model, example)


def test_outputs_that_all_depend_on_them_are_refused_with_the_remedy() -> None:
    class Pooled(Attention):
        def forward(self, x: Tensor, padding: Tensor) -> Tensor:
            return super().forward(x, padding).mean((0, 1))

    model = enlarge(Pooled("uniform"), 0.5).eval()

    with pytest.raises(errors.ConversionError, match="example_inputs in which every query has a"):
        babn.inspect(model, batch())


class Result:
    """An output of a class that torch does not know."""

    def __init__(self, logits: Any) -> None:
        self.logits = logits


class Boxed(nn.Module):
    def __init__(self, box: Any) -> None:
        super().__init__()
        self.box, self.inner = box, CASES["sdpa"].model()

    def forward(self, x: Tensor, padding: Tensor) -> Any:
        return self.box(self.inner(x, padding))


BOXES: dict[str, Any] = {
    "object": Result,
    "infinities": lambda x: x.masked_fill(x < 0, -torch.inf),
}


@pytest.mark.parametrize("box", BOXES)
@pytest.mark.parametrize("right", [True, False], ids=["reproduced", "not reproduced"])
def test_outputs_of_any_kind_are_compared(
    box: str, right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, example = Boxed(BOXES[box]), CASES["sdpa"].batch()

    if right:
        assert babn.inspect(model, example).calls == 2
        return
    off_by_a_little(monkeypatch)
    with pytest.raises(errors.ConversionError, match="outputs move by"):
        babn.inspect(model, example)


@pytest.mark.parametrize("box", [lambda x: "done", lambda x: x.round().long()])
def test_a_model_without_any_numbers_to_compare_is_refused(box: Any) -> None:
    with pytest.raises(errors.ConversionError, match="not floating-point tensors"):
        babn.inspect(Boxed(box), CASES["sdpa"].batch())
