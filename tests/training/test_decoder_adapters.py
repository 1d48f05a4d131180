"""LoRA on a decoder together with beliefs: trained, saved alone, loaded, merged."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor

import babn
from models import CASES, assert_same_weights

pytestmark = pytest.mark.thorough

LLAMA = CASES["llama"]
CONFIG = babn.BeliefConfig.pairs(upward="heads", rho=0.5, kl_weight=0.1, layers="last:2")
LORA = LoraConfig(
    target_modules=["q_proj", "v_proj"], modules_to_save=["babn"], r=2, task_type="CAUSAL_LM"
)


def converted() -> Any:
    torch.manual_seed(7)
    return babn.convert(LLAMA.model(), CONFIG)


@pytest.fixture(scope="module")
def trained() -> PeftModel:
    model = get_peft_model(converted(), LORA).train()
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    torch.manual_seed(0)
    for _ in range(3):
        optimizer.zero_grad()
        LLAMA.loss(model).backward()
        optimizer.step()
    return model.eval()


@torch.no_grad()
def answers(model: Any) -> tuple[Tensor, Tensor]:
    """By the mean and by samples."""
    batch = LLAMA.batch()
    return model(**batch).logits, babn.predict(model, batch, samples=2).sample_logits


def test_both_have_moved_and_the_base_has_not(trained: PeftModel) -> None:
    base = LLAMA.model().state_dict()
    weight = trained.base_model.model.model.layers[1].self_attn.q_proj
    assert torch.equal(weight.base_layer.weight, base["model.layers.1.self_attn.q_proj.weight"])
    assert weight.lora_B["default"].weight.any()
    start = converted().babn.state_dict()
    wrapper = trained.base_model.model.babn
    now = wrapper.modules_to_save["default"].state_dict()
    assert any(not torch.equal(now[name], start[name]) for name in now)


def test_adapters_alone_are_saved_and_come_back(trained: PeftModel, tmp_path: Path) -> None:
    trained.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(converted(), tmp_path).eval()
    assert_same_weights(loaded, trained)
    torch.testing.assert_close(answers(loaded), answers(trained))
    size = (tmp_path / "adapter_model.safetensors").stat().st_size
    assert size < sum(p.numel() * 4 for p in LLAMA.model().parameters()) / 2


def test_merged_adapters_answer_alike_and_stay_stochastic(
    trained: PeftModel, tmp_path: Path
) -> None:
    trained.save_pretrained(tmp_path / "adapter")
    loaded = PeftModel.from_pretrained(converted(), tmp_path / "adapter").eval()
    expected = answers(loaded)
    merged = loaded.merge_and_unload()
    assert isinstance(merged.babn, type(converted().babn))
    for found, known in zip(answers(merged), expected, strict=True):
        torch.testing.assert_close(found, known, rtol=1e-4, atol=1e-4)
    merged.save_pretrained(tmp_path / "merged")
    again = babn.load(tmp_path / "merged")
    assert_same_weights(again, merged)
    torch.testing.assert_close(answers(again), answers(merged))


def test_an_adapted_decoder_writes_with_uncertainty(trained: PeftModel) -> None:
    ids = LLAMA.batch()["input_ids"][:1]
    settings = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    found = babn.generate(trained, ids, 2, **settings)
    assert found.tokens.log_probs.shape == (2, 1, 4)
    assert found.tokens.mutual_information.max() > 0
