"""A converted model whose attention was changed afterwards raises, and no other one does."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

import babn
from babn import errors
from models import CASES, PAIR, Case, cases, gap, outputs, token_batch

pytestmark = pytest.mark.thorough

LOST = r"(?s)attention was changed after conversion.*babn\.revert"


def plain(self: nn.Module, hidden: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
    return hidden, None


class Plain(nn.Module):
    forward = plain


def other_implementation(model: Any) -> None:
    model.set_attn_implementation("eager")


def other_configuration(model: Any) -> None:
    model.bert.config._attn_implementation = "sdpa"


def other_forward(model: Any) -> None:
    module = model.bert.encoder.layer[1].attention.self
    module.forward = plain.__get__(module)


def other_module(model: Any) -> None:
    model.bert.encoder.layer[1].attention.self = Plain()


def other_layer(model: Any) -> None:
    model.bert.encoder.layer[2] = Plain()


class PlainEncoder(nn.Module):
    def forward(self, hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        return hf.modeling_outputs.BaseModelOutput(hidden)


def other_encoder(model: Any) -> None:
    model.bert.encoder = PlainEncoder()


CHANGES = (
    other_implementation,
    other_configuration,
    other_forward,
    other_module,
    other_layer,
    other_encoder,
)


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_model_raises_in_every_kind_of_pass(change: Callable[[Any], None]) -> None:
    case = CASES["bert"]
    model = case.converted()
    change(model)

    with pytest.raises(errors.ConversionError, match=LOST):
        model(**case.batch())
    with pytest.raises(errors.ConversionError, match=LOST):
        babn.predict(model, case.batch(), samples=2)
    with pytest.raises(errors.ConversionError, match=LOST):
        babn.attention_maps(model, case.batch())
    with pytest.raises(errors.ConversionError, match=LOST):
        case.loss(model.train())


@pytest.mark.parametrize("case", cases("clip", "bart", "gpt2", "t5"))
def test_another_implementation_raises_and_can_be_undone(case: Case) -> None:
    model, batch = case.converted(sigma=0.1), case.batch()
    expected = outputs(model, batch)
    model.set_attn_implementation("eager")

    with pytest.raises(errors.ConversionError, match=r'set_attn_implementation\("babn"\)'):
        model(**batch)
    model.set_attn_implementation("babn")

    assert gap(expected, outputs(model, batch)) < 1e-6


def swap_multihead(model: Any) -> None:
    model.layers[0] = nn.MultiheadAttention(16, 4, batch_first=True)


def swap_sdpa(model: Any) -> None:
    model.layers[1].forward = lambda x, seen: x


class PlainLayer(nn.Module):
    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        return x


def swap_layer(model: Any) -> None:
    model.layers[1] = PlainLayer()


@pytest.mark.parametrize(("name", "change"), [("multihead", swap_multihead), ("sdpa", swap_sdpa)])
def test_a_changed_torch_model_raises(name: str, change: Callable[[Any], None]) -> None:
    model = CASES[name].converted()
    change(model)

    with pytest.raises(errors.ConversionError, match=LOST):
        model(**CASES[name].batch())


def test_one_changed_layer_among_those_that_were_chosen() -> None:
    model = CASES["bert"].converted(layers="last:1")
    other_module(model)  # was not chosen
    model(**CASES["bert"].batch())
    model.bert.encoder.layer[2].attention.self = Plain()

    with pytest.raises(errors.ConversionError, match=LOST):
        model(**CASES["bert"].batch())


def test_the_encoder_may_be_left_out() -> None:
    case = CASES["bart"]
    model, batch = case.converted(), case.batch()
    with torch.no_grad():
        encoded = model.get_encoder()(batch["input_ids"], batch["attention_mask"])
    decoder = {name: value for name, value in batch.items() if name != "input_ids"}

    model(encoder_outputs=encoded, **decoder)
    babn.convert(case.model(), babn.BeliefConfig.pairs(max_length=64, layers="*encoder.layers*"))(
        encoder_outputs=encoded, **decoder
    )
    model.generate(**token_batch(), max_new_tokens=3, num_beams=2)


def test_cross_attention_may_be_left_out() -> None:
    config = CASES["bert"].model().config
    config.is_decoder = config.add_cross_attention = True
    model = hf.BertModel(config).eval()
    batch = token_batch()
    example = batch | {"encoder_hidden_states": torch.randn(2, 4, 32)}
    babn.convert(model, babn.BeliefConfig.pairs(max_length=64), example)

    model(**batch)
    model(**example)


def test_one_of_two_towers_may_be_left_out() -> None:
    model = CASES["clip"].converted(layers="vision_model*")

    model.get_text_features(**token_batch())
    model.get_image_features(CASES["clip"].batch()["pixel_values"])


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_layers_may_be_dropped_in_training(share: float) -> None:
    settings = {"encoder_layerdrop": share, "decoder_layerdrop": share, "dropout": 0.0}
    model = hf.BartForConditionalGeneration(hf.BartConfig(**PAIR, **settings))
    babn.convert(model, babn.BeliefConfig.pairs(max_length=64)).train()

    for seed in range(4):
        torch.manual_seed(seed)
        CASES["bart"].loss(model)


def test_layers_may_not_be_taken_away() -> None:
    model = CASES["gpt2"].converted()
    model.transformer.h = model.transformer.h[:1]

    with pytest.raises(errors.ConversionError, match=LOST):
        model(**token_batch())


def compiled_error(change: str) -> str:
    """What a compiled model raises after a change, as one graph and after it was compiled."""
    model = CASES["sdpa"].converted()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    compiled(**CASES["sdpa"].batch())
    changes = {"forward": swap_sdpa, "module": swap_layer}
    changes[change](model)
    try:
        compiled(**CASES["sdpa"].batch())
    except Exception as error:
        return str(error)
    return ""


@pytest.mark.parametrize("change", ["forward", "module"])
def test_a_changed_model_raises_when_compiled(change: str, unchecked: Callable[..., Any]) -> None:
    assert "attention was changed after conversion" in unchecked(compiled_error, change)


class Exits(nn.Module):
    """Stops after some layers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = CASES["sdpa"].model()

    def forward(self, x: Tensor, padding: Tensor, layers: int = 2) -> Tensor:
        for layer in self.inner.layers[:layers]:
            x = x + layer(x, ~padding[:, None, None])
        return x


def test_a_model_may_stop_early() -> None:
    batch = CASES["sdpa"].batch()
    model = babn.convert(Exits().eval(), babn.BeliefConfig.pairs(max_length=64), batch)

    model(**batch, layers=1)
