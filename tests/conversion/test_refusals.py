"""What cannot be converted is refused, by name, with the remedy, and stays as it was."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

import babn
from babn import errors
from models import CASES, GROUPED, TEXT, HandmadeAttention, surface, token_batch, vector_batch


class OtherAttention(HandmadeAttention):
    """Of a class that nobody has registered."""


class Misdescribed(HandmadeAttention):
    """Of a class that is registered with names that it does not have."""


def bert() -> nn.Module:
    return CASES["bert"].model()


def multihead() -> nn.Module:
    return CASES["multihead"].model()


def with_nan() -> nn.Module:
    model = bert()
    with torch.no_grad():
        model.classifier.weight[0, 0] = torch.nan
    return model


def xlnet() -> nn.Module:
    settings = {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48, "vocab_size": 99}
    return hf.XLNetForSequenceClassification(hf.XLNetConfig(**settings))


def with_sinks() -> nn.Module:
    settings = {"num_local_experts": 2, "num_experts_per_tok": 1, **GROUPED}
    return hf.GptOssForCausalLM(hf.GptOssConfig(**settings))


def sparse() -> nn.Module:
    sizes = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8}
    index = {"index_topk": 16, "index_head_dim": 8, "index_n_heads": 4}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
    settings = TEXT | sizes | index | experts | {"v_head_dim": 8, "num_key_value_heads": 4}
    return hf.DeepseekV32ForCausalLM(hf.DeepseekV32Config(**settings))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU())


@dataclass(frozen=True)
class Refusal:
    """A model that is refused, and how."""

    build: Callable[[], nn.Module]
    error: type[Exception]
    message: str
    example: Any = None
    max_length: int = 64


NOTHING, WRONG = errors.NothingToConvertError, errors.ExampleInputsError
TOO_LONG = r'9 keys.*max_length=8.*max_length=9.*upward="heads"'
REFUSALS = {
    "too-long": Refusal(bert, errors.KeyLengthError, TOO_LONG, max_length=8),
    "mlp": Refusal(mlp, NOTHING, "Sequential.*register_family", torch.ones(1, 4)),
    "other": Refusal(OtherAttention, NOTHING, "OtherAttention.*register_family", vector_batch()),
    "xlnet": Refusal(xlnet, NOTHING, "XLNetRelativeAttention.*register_family"),
    "sinks": Refusal(with_sinks, errors.UnsupportedAttentionError, "s_aux.*Revert"),
    "sparse": Refusal(sparse, errors.UnsupportedAttentionError, "passes indices.*sparse.*Revert"),
    "converted": Refusal(CASES["bert"].converted, errors.AlreadyConvertedError, r"babn\.revert"),
    "nan": Refusal(with_nan, errors.NonFiniteError, r"classifier\.weight has 1 NaN.*64.*Reload"),
    "no-example": Refusal(multihead, WRONG, "Multihead.*example_inputs"),
    "wrong-example": Refusal(
        multihead, WRONG, "Multihead.*Tensor.*example_inputs", torch.ones(2, 3)
    ),
    "wrong-names": Refusal(bert, WRONG, "pixels.*example_inputs", {"pixels": torch.ones(2, 3)}),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_conversion_is_refused_and_the_model_untouched(name: str) -> None:
    refusal = REFUSALS[name]
    model = refusal.build().train()
    before, own = surface(model), getattr(model, "config", None)
    weights = {key: value.clone() for key, value in model.state_dict().items()}

    with pytest.raises(refusal.error, match=f"(?s){refusal.message}"):
        babn.convert(model, babn.BeliefConfig.pairs(max_length=refusal.max_length), refusal.example)

    assert surface(model) == before
    assert getattr(model, "config", None) is own
    after = model.state_dict()
    torch.testing.assert_close(after, weights, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("method", [{"rho": 1.0}, babn.BeliefConfig, hf.BertConfig(), "belief"])
def test_a_configuration_of_a_wrong_type(method: Any, as_installed: None) -> None:
    model = bert()
    before = surface(model)

    with pytest.raises(errors.ConfigError, match=r"(?s)config=.*babn\.BeliefConfig\(\.\.\.\)"):
        babn.convert(model, method)
    assert surface(model) == before


class Sideways(HandmadeAttention):
    """Normalises over queries; padding sees nothing, as in DeBERTa, if `masked_rows` is set."""

    masked_rows = False

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        masked = padding[:, None, None] | (padding[:, None, :, None] & self.masked_rows)
        heads = self.key(x).view(*x.shape[:2], 4, 4).transpose(1, 2)
        scores = (heads @ heads.transpose(-1, -2)).masked_fill(masked, -1e9)
        return (torch.softmax(scores, dim=-2) @ heads).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("masked_rows", [False, True])
def test_attention_that_is_not_reproduced(masked_rows: bool) -> None:
    babn.register_family("Sideways", babn.SoftmaxSpec(keys="key"))
    model = Sideways().eval()
    model.masked_rows = masked_rows

    with pytest.raises(errors.ConversionError, match=r"Sideways.*outputs move by"):
        babn.convert(model, babn.BeliefConfig.pairs(max_length=64), vector_batch())


@pytest.mark.parametrize(
    "spec",
    [
        babn.SoftmaxSpec(keys="projection"),
        babn.SoftmaxSpec(keys="key", dropout="drop"),
        babn.SoftmaxSpec(keys="key", dropout="value"),
    ],
    ids=["no-such-keys", "no-such-dropout", "not-a-dropout"],
)
def test_a_family_that_is_described_wrongly(spec: babn.SoftmaxSpec) -> None:
    babn.register_family("Misdescribed", spec)
    model = Misdescribed().eval()
    before = surface(model)

    with pytest.raises(errors.BabnError, match="Misdescribed"):
        babn.convert(model, babn.BeliefConfig.pairs(max_length=64), vector_batch())
    assert surface(model) == before


@pytest.mark.thorough
@pytest.mark.parametrize("layers", ["all", "first:1"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cu_seq_lens_q", "one text per row"),
        ("seq_idx", "one text per row"),
        ("bias", "may change"),
    ],
)
def test_a_keyword_that_may_change_attention(layers: str, name: str, message: str) -> None:
    model = babn.convert(
        CASES["llama"].model(), babn.BeliefConfig.pairs(max_length=64, layers=layers)
    )

    with pytest.raises(errors.UnsupportedAttentionError, match=f"passes {name} .*{message}"):
        model(**token_batch(), **{name: torch.tensor([0, 9])})


@pytest.mark.parametrize("layers", ["all", "first:1"])
def test_keywords_that_change_nothing(layers: str) -> None:
    model = babn.convert(
        CASES["llama"].model(), babn.BeliefConfig.pairs(max_length=64, layers=layers)
    )
    batch, texts = token_batch(), torch.zeros(2, 9, dtype=torch.long)

    harmless = {"token_type_ids": texts, "num_items_in_batch": 3, "cu_seq_lens_q": None}
    given = model(**batch, **harmless, output_attentions=False)

    assert torch.equal(given.logits, model(**batch).logits)
