"""Beliefs trained on a frozen base, saved alone, and put onto a fresh one."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import babn
from babn.errors import ConfigError, MismatchError, NotConvertedError
from models import CASES, Case, cases

LLAMA = CASES["llama"]
SETTINGS = {"upward": "heads", "rho": 0.5, "kl_weight": 0.1}


def trained(
    case: Case = LLAMA, steps: int = 3, modules: tuple[str, ...] | None = (), **settings: Any
) -> Any:
    """A converted model whose beliefs alone have taken some steps."""
    model = babn.freeze_base(
        babn.convert(case.model(), babn.BeliefConfig.pairs(**SETTINGS | settings)), modules
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


def test_a_new_classifier_is_trained_saved_and_restored(tmp_path: Path) -> None:
    case = CASES["albert"]
    model = trained(case, modules=None)
    assert not torch.equal(model.classifier.weight, case.model().classifier.weight)
    assert not model.albert.embeddings.word_embeddings.weight.requires_grad
    babn.save_adapter(model, tmp_path / "one")
    base = case.model()
    torch.nn.init.normal_(base.classifier.weight)  # as `from_pretrained` of an encoder does
    loaded = babn.load_adapter(base, tmp_path / "one")
    assert torch.equal(loaded.classifier.weight, model.classifier.weight)
    batch = case.batch()
    with torch.no_grad():
        assert torch.equal(loaded.eval()(**batch).logits, model(**batch).logits)
    babn.save_adapter(loaded, tmp_path / "two")
    files = [load_file(tmp_path / each / "belief.safetensors") for each in ("one", "two")]
    torch.testing.assert_close(*files, rtol=0, atol=0)
    with torch.no_grad():
        (other := case.model()).albert.embeddings.word_embeddings.weight.add_(1)
    with pytest.raises(MismatchError, match=r"word_embeddings.weight differ"):
        babn.load_adapter(other, tmp_path / "one")


def test_a_whole_model_remembers_which_modules_its_adapter_holds(tmp_path: Path) -> None:
    case = CASES["albert"]
    trained(case, modules=None).save_pretrained(tmp_path / "whole")
    loaded = babn.load(tmp_path / "whole", example_inputs=case.batch())
    babn.save_adapter(loaded, tmp_path / "adapter")
    restored = babn.load_adapter(case.model(), tmp_path / "adapter")
    assert torch.equal(restored.classifier.weight, loaded.classifier.weight)


def test_a_classifier_of_another_size_is_refused_with_the_remedy(tmp_path: Path) -> None:
    case = CASES["albert"]
    babn.save_adapter(trained(case, modules=("classifier",)), tmp_path)
    base = case.model()
    base.classifier = torch.nn.Linear(base.config.hidden_size, 7)
    with pytest.raises(MismatchError, match=r"classifier.* of shape .* same num_labels"):
        babn.load_adapter(base, tmp_path)
    assert not hasattr(base, "babn")


def test_modules_to_save_are_validated_before_anything_is_frozen() -> None:
    model = CASES["albert"].converted()
    for given, message in [(("head",), "'head'.*'classifier'"), ("classifier", "is one text")]:
        with pytest.raises(ConfigError, match=message):
            babn.freeze_base(model, given)
    assert all(p.requires_grad for p in model.parameters())
