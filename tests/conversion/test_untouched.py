"""A dry run leaves the model, the process and other threads as they were."""

import threading
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import pytest
import torch
import transformers as hf
from torch import Tensor, nn

import babn
from babn import errors
from models import CASES, PAIR, TEXT, surface

SPARSE = {
    "block_size": 4,
    "num_random_blocks": 1,
    "attention_type": "block_sparse",
    "max_position_embeddings": 64,
}
LONG = (torch.arange(40).reshape(1, 40) * 7 + 3) % 96


def bigbird() -> nn.Module:
    return hf.BigBirdForTokenClassification(hf.BigBirdConfig(**TEXT | SPARSE))


def bigbird_pegasus() -> nn.Module:
    return hf.BigBirdPegasusForConditionalGeneration(hf.BigBirdPegasusConfig(**PAIR | SPARSE))


def long_output(model: nn.Module) -> Tensor:
    """Of a text that is long enough for block-sparse attention, whose blocks numpy draws."""
    np.random.seed(0)
    pair = {"decoder_input_ids": LONG[:, :5]} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        return model(input_ids=LONG, **pair).logits


@pytest.mark.parametrize("length", [9, 40])
@pytest.mark.parametrize("build", [bigbird, bigbird_pegasus])
def test_models_that_switch_their_attention_are_refused_and_unchanged(
    build: Callable[[], nn.Module], length: int
) -> None:
    model = build().eval()
    before, expected = surface(model), long_output(model)
    example = {"input_ids": LONG[:, :length]}
    example |= {"decoder_input_ids": LONG[:, :5]} if model.config.is_encoder_decoder else {}

    for verb in (babn.inspect, babn.convert):
        with pytest.raises(errors.BabnError, match=r'"block_sparse".*short.*"original_full"'):
            verb(model, example_inputs=example)

    assert surface(model) == before
    assert torch.equal(long_output(model), expected)


class Switching(nn.Module):
    """Replaces its attention when a text is short."""

    def __init__(self) -> None:
        super().__init__()
        self.inner: nn.Module = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] < 8 and isinstance(self.inner, nn.Sequential):
            self.inner = nn.MultiheadAttention(16, 4, batch_first=True)
        return self.inner(x) if x.shape[1] > 7 else self.inner(x, x, x)[0]


def test_a_module_that_is_replaced_in_a_forward_pass_is_refused() -> None:
    model = Switching()

    with pytest.raises(errors.ConversionError, match="replaces the module at inner"):
        babn.convert(model, babn.BeliefConfig.pairs(max_length=16), torch.randn(2, 5, 16))


@pytest.mark.parametrize("fails", [False, True], ids=["succeeds", "fails"])
def test_modes_weights_and_hooks_are_those_of_before(fails: bool) -> None:
    model, x = CASES["torch-encoder"].model().train(), torch.randn(2, 5, 16)
    model.encoder.layers[0].eval()
    before = surface(model)
    weights = {name: value.clone() for name, value in model.state_dict().items()}

    if fails:
        with pytest.raises(errors.ExampleInputsError):
            babn.inspect(model, torch.randn(2, 5, 3))
    else:
        babn.inspect(model, (x, torch.zeros(2, 5, dtype=torch.bool)))

    assert surface(model) == before
    torch.testing.assert_close(model.state_dict(), weights, rtol=0, atol=0)


def test_arguments_are_not_changed_either() -> None:
    model = CASES["gpt2"].model()
    ids = torch.arange(12).reshape(2, 6)
    with torch.no_grad():
        cache = model(ids, attention_mask=torch.ones_like(ids), use_cache=True).past_key_values
    length = cache.get_seq_length()

    seen = torch.ones(2, 12, dtype=torch.long)
    babn.inspect(model, {"input_ids": ids, "attention_mask": seen, "past_key_values": cache})

    assert cache.get_seq_length() == length


def test_configurations_that_other_models_share_are_not_touched() -> None:
    model = CASES["bert"].model()
    shared, seen = model.config, set()
    model.register_forward_hook(lambda *_: seen.add(shared._attn_implementation))

    babn.inspect(model)

    assert seen == {shared._attn_implementation}
    assert model.config is shared


def test_weights_that_a_model_divides_in_its_first_pass_are_divided_once() -> None:
    sizes = {"hidden_size": 16, "attention_hidden_size": 16, "intermediate_size": 16}
    config = hf.RwkvConfig(**sizes, vocab_size=99, num_hidden_layers=3, rescale_every=1)
    torch.manual_seed(0)
    model, other = (hf.RwkvModel(config).eval() for _ in range(2))
    other.load_state_dict(model.state_dict())

    with pytest.raises(errors.NothingToConvertError):
        babn.inspect(model)

    with torch.no_grad():
        assert torch.equal(model(LONG).last_hidden_state, other(LONG).last_hidden_state)


class Overlapping(nn.Module):
    """Two of them, in two threads, try to end in the order in which they began."""

    fast: ClassVar[set[bool]] = set()

    def __init__(self, began: threading.Event, other: threading.Event) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.began, self.other = began, other

    def forward(self, x: Tensor) -> Tensor:
        self.fast.add(torch.backends.mha.get_fastpath_enabled())
        self.began.set()
        self.other.wait(0.2)
        return self.attention(x, x, x)[0]


def test_threads_leave_the_settings_and_random_numbers_of_the_process_alone() -> None:
    first, second, ended, x = *(threading.Event() for _ in range(3)), torch.randn(2, 5, 16)
    models = [Overlapping(first, second), Overlapping(second, ended)]
    state = torch.get_rng_state()

    def convert(number: int) -> None:
        if number:
            first.wait(5)
        babn.inspect(models[number], x)
        ended.set()

    threads = [threading.Thread(target=convert, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert torch.backends.mha.get_fastpath_enabled()
    assert torch.equal(torch.get_rng_state(), state)
    assert Overlapping.fast == {True}
