"""Beliefs trained on a base whose weights are whole numbers."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

import babn
from models import CASES, Case, cases, without_dropout

pytestmark = pytest.mark.thorough

SETTINGS = {"upward": "heads", "rho": 0.5, "kl_weight": 0.1}


class Int8Linear(nn.Module):
    """A linear map of 8-bit weights with one scale for each output; no `nn.Linear`."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach()
        self.scale = nn.Buffer(weight.abs().amax(1, keepdim=True) / 127)
        self.weight = nn.Parameter((weight / self.scale).round().to(torch.int8), False)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype) * self.scale.to(x.dtype), self.bias)


def quantised(case: Case) -> Any:
    """A model without a single `nn.Linear`."""
    model = without_dropout(case.model())
    for path, module in list(model.named_modules()):
        if isinstance(module, nn.Linear):
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, Int8Linear(module))
    return model


def trained(model: Any, loss: Callable[[Any], Tensor], **settings: Any) -> Any:
    """A converted model whose beliefs alone have taken some steps."""
    model = babn.freeze_base(babn.convert(model, babn.BeliefConfig.pairs(**SETTINGS | settings)))
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    model.train()
    torch.manual_seed(0)
    for _ in range(3):
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()
    return model.eval()


def samples(model: Any, case: Case) -> Tensor:
    return babn.predict(model, case.batch(), samples=2).sample_logits


@pytest.mark.parametrize("case", cases("bert", "llama", "gpt2", "bart"))
def test_conversion_leaves_the_mean_as_it_is(case: Case) -> None:
    model = quantised(case)
    with torch.no_grad():
        before = model(**case.batch()).logits
        after = babn.convert(model, babn.BeliefConfig.pairs(upward="heads", sigma=0.0))(
            **case.batch()
        )
    torch.testing.assert_close(after.logits, before)


@pytest.mark.parametrize("case", cases("bert", "llama"))
def test_beliefs_alone_are_trained_saved_and_loaded(case: Case, tmp_path: Path) -> None:
    base, model = quantised(case), trained(quantised(case), case.loss)
    for name, tensor in base.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor)
    fresh = babn.convert(quantised(case), babn.BeliefConfig.pairs(**SETTINGS)).babn
    assert any(not p.equal(fresh.get_parameter(n)) for n, p in model.babn.named_parameters())
    babn.save_adapter(model, tmp_path)
    loaded = babn.load_adapter(quantised(case), tmp_path)
    assert torch.equal(samples(loaded, case), samples(model, case))


def test_beliefs_of_a_quantised_base_go_onto_the_base_itself(tmp_path: Path) -> None:
    case = CASES["llama"]
    model = trained(quantised(case), case.loss)
    babn.save_adapter(model, tmp_path)
    with pytest.warns(babn.errors.BabnWarning, match=r"not be verified: .*q_proj.*quantised"):
        loaded = babn.load_adapter(case.model(), tmp_path)
    whole = samples(loaded, case)
    torch.testing.assert_close(whole, samples(model, case), rtol=0, atol=0.3)


@pytest.mark.slow
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.filterwarnings("error::babn.errors.BabnWarning")
def test_bases_of_bitsandbytes(bits: int, tmp_path: Path) -> None:
    kinds = pytest.importorskip("bitsandbytes").nn
    kind = {4: kinds.Linear4bit, 8: kinds.Linear8bitLt}[bits]
    case = CASES["llama"]
    case.model().save_pretrained(tmp_path / "base")

    def base() -> Any:
        wanted = transformers.BitsAndBytesConfig(**{f"load_in_{bits}bit": True})
        return transformers.LlamaForCausalLM.from_pretrained(
            tmp_path / "base", quantization_config=wanted
        )

    model = trained(base(), case.loss)
    projection = model.model.layers[0].self_attn.q_proj
    assert isinstance(projection, kind) and not projection.weight.is_floating_point()
    assert {n for n, p in model.named_parameters() if p.requires_grad} == {
        f"babn.{n}" for n, _ in model.babn.named_parameters()
    }
    babn.save_adapter(model, tmp_path / "belief")
    model.save_pretrained(tmp_path / "whole")
    for loaded in (babn.load_adapter(base(), tmp_path / "belief"), babn.load(tmp_path / "whole")):
        assert isinstance(loaded.model.layers[0].self_attn.q_proj, kind)
        assert torch.equal(samples(loaded.eval(), case), samples(model, case))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_block_of_the_document(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    page = (Path(__file__).parents[2] / "docs/scale.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```py\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    CASES["llama"].model().save_pretrained(tmp_path)
    names = {"babn": babn, "name": str(tmp_path), "config": babn.BeliefConfig.pairs(upward="heads")}
    kinds = {
        "BitsAndBytesConfig": transformers.BitsAndBytesConfig,
        "LlamaForCausalLM": transformers.LlamaForCausalLM,
    }
    made: dict[str, Any] = {**names, **kinds}
    exec(compile(code, "docs/scale.md", "exec"), made)
    learnt = {name for name, p in made["model"].named_parameters() if p.requires_grad}
    assert learnt and all(name.startswith("babn.") for name in learnt)
