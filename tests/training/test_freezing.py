"""Beliefs trained on a frozen base, saved alone, and put onto a fresh one."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import babn
from babn.errors import MismatchError, NotConvertedError
from models import CASES, Case, cases

LLAMA = CASES["llama"]
SETTINGS = {"upward": "heads", "rho": 0.5, "kl_weight": 0.1}


def trained(case: Case = LLAMA, steps: int = 3, **settings: Any) -> Any:
    """A converted model whose beliefs alone have taken some steps."""
    model = babn.freeze_base(
        babn.convert(case.model(), babn.BeliefConfig.pairs(**SETTINGS | settings))
    )
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    model.train()
    torch.manual_seed(0)
    for _ in range(steps):
        optimizer.zero_grad()
        case.loss(model).backward()
        optimizer.step()
    return model.eval()


def answers(model: Any) -> Tensor:
    return babn.predict(model, LLAMA.batch(), samples=2).sample_logits


@pytest.mark.parametrize("case", cases("llama", "gpt2", "bart", "albert"))
def test_beliefs_alone_are_trained(case: Case) -> None:
    model, base = trained(case, layers="last:2"), case.model()
    fresh = babn.convert(case.model(), babn.BeliefConfig.pairs(**SETTINGS, layers="last:2"))
    for name, parameter in base.state_dict().items():
        assert torch.equal(model.state_dict()[name], parameter)
    moved = [
        n for n, p in model.babn.named_parameters() if not p.equal(fresh.babn.get_parameter(n))
    ]
    assert {n for n, p in model.named_parameters() if p.requires_grad} == {
        f"babn.{n}" for n, _ in model.babn.named_parameters()
    }
    assert any("shape_map" in name for name in moved) and any("prior" in name for name in moved)


def test_what_is_saved_is_small_and_comes_back(tmp_path: Path) -> None:
    model = trained()
    babn.save_adapter(model, tmp_path)
    loaded = babn.load_adapter(LLAMA.model(), tmp_path)
    assert torch.equal(answers(loaded), answers(model))
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 20_000
    bytes_of_base = sum(p.numel() * 4 for p in LLAMA.model().parameters())
    assert (tmp_path / "belief.safetensors").stat().st_size < bytes_of_base / 10


def test_another_base_of_the_same_shape_is_refused(tmp_path: Path) -> None:
    babn.save_adapter(trained(), tmp_path)
    other = LLAMA.model()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    with pytest.raises(MismatchError, match=r"q_proj.weight.* differ.*check_base=False"):
        babn.load_adapter(other, tmp_path)
    assert not hasattr(other, "babn")
    assert hasattr(babn.load_adapter(other, tmp_path, check_base=False), "babn")


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # on CPUs without bf16
def test_the_same_base_in_half_precision_is_known(dtype: torch.dtype, tmp_path: Path) -> None:
    babn.save_adapter(trained(), tmp_path)
    assert hasattr(babn.load_adapter(LLAMA.model().to(dtype), tmp_path), "babn")
    assert hasattr(babn.load_adapter(LLAMA.model().to(dtype).float(), tmp_path), "babn")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "lm_head.weight",
        "model.layers.1.mlp.up_proj.weight",
        "model.norm.weight",
    ],
)
def test_one_changed_number_anywhere_in_the_base_is_refused(name: str, tmp_path: Path) -> None:
    babn.save_adapter(LLAMA.converted(), tmp_path)
    other = LLAMA.model()
    with torch.no_grad():
        other.get_parameter(name).view(-1)[-1].mul_(1.0001)
    with pytest.raises(MismatchError, match=rf"other weights: {name} differ"):
        babn.load_adapter(other, tmp_path)


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    babn.save_adapter(trained(), tmp_path)
    with pytest.raises(MismatchError, match="chains"):
        babn.load_adapter(CASES["gpt2"].model(), tmp_path)


def test_a_model_that_is_not_converted_is_refused_and_stays() -> None:
    model = LLAMA.model()
    with pytest.raises(NotConvertedError, match=r"babn\.convert"):
        babn.freeze_base(model)
    assert all(p.requires_grad for p in model.parameters())


def test_a_frozen_base_holds_no_gradients() -> None:
    model = babn.freeze_base(LLAMA.converted()).train()
    LLAMA.loss(model).backward()
    assert all(p.grad is None for n, p in model.named_parameters() if not n.startswith("babn."))
