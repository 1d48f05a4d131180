"""Loops written by hand with Accelerate."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from small_training import BELIEF, batch_of, bert, texts
from torch import Tensor
from torch.utils.data import DataLoader

import babn

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("precision", ["no", pytest.param("bf16", marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # on CPUs without bf16
def test_loop_trains_likelihood_and_kl(tmp_path: Path, precision: str) -> None:
    accelerator = Accelerator(cpu=True, mixed_precision=precision)
    model = babn.convert(bert(), BELIEF).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    loader = DataLoader(texts(64), batch_size=16, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses: list[Tensor] = []
    for _ in range(8):
        for batch in loader:
            output = model(**batch)
            likelihood = F.cross_entropy(output.logits.float(), batch["labels"])
            torch.testing.assert_close(output.loss, likelihood + 0.1 * output.belief_kl)
            accelerator.backward(output.loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(output.loss.detach())
    assert torch.stack(losses).isfinite().all()
    assert losses[-1] < 0.7 * losses[0]
    accelerator.unwrap_model(model).save_pretrained(tmp_path)
    loaded, batch = babn.load(tmp_path), batch_of(texts())
    expected = accelerator.unwrap_model(model, keep_fp32_wrapper=False).eval()(**batch).logits
    assert torch.equal(loaded(**batch).logits, expected)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_kl_is_computed_in_float32_under_autocast() -> None:
    model, batch = babn.convert(bert(), BELIEF).eval(), batch_of(texts())
    exact = model(**batch).belief_kl
    with torch.autocast("cpu", torch.bfloat16):
        found = model(**batch).belief_kl
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, exact, rtol=1e-3, atol=0)
