"""Attention in plain torch: every option of the two calls that torch has for it."""

import copy
import inspect
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import babn
from models import enlarge, floats, gap


class Attention(nn.Module):
    """One `nn.MultiheadAttention` with options of its construction and of its call."""

    def __init__(self, construction: dict[str, Any], call: dict[str, Any]) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(16, 4, **construction)
        self.call = call

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Any:
        return self.inner(query, key, value, **self.call)


def padding(kind: torch.dtype) -> Tensor:
    """Padding of the second example's last keys; additive unless boolean."""
    mask = torch.zeros(2, 6, dtype=torch.bool)
    mask[1, 4:] = True
    return mask if kind == torch.bool else torch.zeros(2, 6).masked_fill(mask, -torch.inf)


NO_LATER_KEYS = torch.ones(5, 6, dtype=torch.bool).triu(1)
BIAS = torch.linspace(-1, 1, 30).reshape(5, 6)

OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "batch-first": ({"batch_first": True}, {}),
    "other-sizes": ({"kdim": 8, "vdim": 12}, {}),
    "bias-of-keys": ({"add_bias_kv": True}, {}),
    "zero-key": ({"add_zero_attn": True}, {}),
    "all-of-these": ({"kdim": 8, "vdim": 12, "add_bias_kv": True, "add_zero_attn": True}, {}),
    "no-bias": ({"bias": False}, {}),
    "no-weights": ({}, {"need_weights": False}),
    "weights-of-heads": ({}, {"average_attn_weights": False}),
    "padding": ({}, {"key_padding_mask": padding(torch.bool)}),
    "float-padding": ({}, {"key_padding_mask": padding(torch.float)}),
    "mask": ({}, {"attn_mask": NO_LATER_KEYS}),
    "mask-of-heads": ({}, {"attn_mask": NO_LATER_KEYS.expand(8, 5, 6)}),
    "bias": ({}, {"attn_mask": BIAS}),
    "bias-and-padding": ({}, {"attn_mask": BIAS, "key_padding_mask": padding(torch.float)}),
    "padding-and-zero-key": ({"add_zero_attn": True}, {"key_padding_mask": padding(torch.bool)}),
    "causal": ({}, {"attn_mask": NO_LATER_KEYS, "is_causal": True, "need_weights": False}),
}


def multihead_inputs(construction: dict[str, Any]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = {
        "query": (5, 2, 16),
        "key": (6, 2, construction.get("kdim", 16)),
        "value": (6, 2, construction.get("vdim", 16)),
    }
    made = {name: torch.randn(*size, generator=generator) for name, size in sizes.items()}
    first = construction.get("batch_first", False)
    return {name: x.transpose(0, 1) if first else x for name, x in made.items()}


def check(model: nn.Module, inputs: dict[str, Tensor]) -> None:
    """Mean, noiseless training, and the way back all give the original outputs."""
    enlarge(model, 0.5).eval()
    expected = floats(model(**inputs))
    babn.convert(model, babn.BeliefConfig.pairs(max_length=16, rho=1e9, sigma=0.0), inputs)
    assert gap(expected, floats(model(**inputs))) < 1e-5
    assert gap(expected, floats(model.train()(**inputs))) < 1e-4
    assert babn.belief_kl(model).isfinite()
    babn.revert(model.eval())
    assert all(map(torch.equal, expected, floats(model(**inputs))))


@pytest.mark.parametrize("name", OPTIONS)
def test_multihead_attention_with_every_option(name: str) -> None:
    construction, call = OPTIONS[name]
    check(Attention(construction, call), multihead_inputs(construction))


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("construction", [{}, {"batch_first": True}, {"kdim": 8, "vdim": 12}])
def test_multihead_attention_without_a_batch(
    construction: dict[str, Any], need_weights: bool
) -> None:
    inputs = multihead_inputs({**construction, "batch_first": True})
    call = {"need_weights": need_weights, "attn_mask": NO_LATER_KEYS}

    check(Attention(construction, call), {name: x[0] for name, x in inputs.items()})


def test_multihead_attention_refuses_causality_without_a_mask_as_torch_does() -> None:
    model, inputs = Attention({}, {}), multihead_inputs({})
    babn.convert(model, babn.BeliefConfig.pairs(max_length=16), inputs)
    model.call = {"is_causal": True}

    with pytest.raises(RuntimeError, match="mask"):
        model(**inputs)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize(
    "construction",
    [
        {},
        {"add_bias_kv": True},
        {"add_zero_attn": True},
        {"kdim": 8, "vdim": 12, "add_bias_kv": True, "add_zero_attn": True},
    ],
)
def test_the_hint_of_causality_is_read_as_torch_reads_it(
    construction: dict[str, Any], padded: bool, need_weights: bool
) -> None:
    """Torch takes the mask where it makes weights and the hint where it does not."""
    inputs = multihead_inputs(construction)
    own = enlarge(Attention(construction, {}), 0.5).eval()
    model = copy.deepcopy(own)
    babn.convert(model, babn.BeliefConfig.pairs(max_length=16, sigma=0.0), inputs)

    for attention in (own, model):
        attention.call = {
            "attn_mask": NO_LATER_KEYS,
            "is_causal": True,
            "need_weights": need_weights,
            "key_padding_mask": padding(torch.bool) if padded else None,
        }
    assert gap(floats(own(**inputs)), floats(model(**inputs))) < 1e-5


class Doubled(nn.MultiheadAttention):
    """Passes its inputs on to torch's forward and changes its output."""

    def forward(self, query: Tensor, *args: Any, **kwargs: Any) -> Any:
        output, weights = super().forward(query, *args, **kwargs)
        return 2 * output + query, weights


class Functional(nn.MultiheadAttention):
    """Calls torch's function itself."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Any:
        return F.multi_head_attention_forward(
            query,
            key,
            value,
            self.embed_dim,
            self.num_heads,
            self.in_proj_weight,
            self.in_proj_bias,
            None,
            None,
            False,
            0.0,
            self.out_proj.weight,
            self.out_proj.bias,
        )


class Wrapped(nn.MultiheadAttention):
    """Has a forward that another tool put on the object."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        torch_forward = super().forward
        self.forward = lambda query, *rest: torch_forward(2 * query, *rest)


class ByHand(nn.MultiheadAttention):
    """Computes attention in a way of its own."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        return (query @ key.transpose(-1, -2)).softmax(-1) @ value


class Around(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Any:
        return self.inner(query, key, value)


@pytest.mark.parametrize("kind", [Doubled, Functional, Wrapped])
def test_a_forward_that_is_not_torchs_is_called(kind: type[nn.MultiheadAttention]) -> None:
    check(Around(kind(16, 4)), multihead_inputs({}))


def test_a_wrapped_forward_has_an_effect_after_conversion() -> None:
    inputs = multihead_inputs({})
    model = enlarge(Around(Wrapped(16, 4)), 0.5).eval()
    plain = enlarge(Around(nn.MultiheadAttention(16, 4)), 0.5).eval()
    for module in (model, plain):
        babn.convert(module, babn.BeliefConfig.pairs(max_length=16, sigma=0.0), inputs)

    assert gap(floats(plain(**inputs)), floats(model(**inputs))) > 0.1


def test_an_encoder_calls_the_forward_of_a_subclass_off_its_fast_path() -> None:
    layer = nn.TransformerEncoderLayer(16, 4, 24, batch_first=True)
    layer.self_attn = Doubled(16, 4, batch_first=True)
    model, x = enlarge(layer, 0.3).eval(), torch.randn(2, 5, 16)
    expected = model(x)  # with gradients, so not on the fast path, which ignores the subclass
    babn.convert(model, babn.BeliefConfig.pairs(max_length=16, sigma=0.0), x)

    with torch.no_grad():
        assert gap([expected], [model(x)]) < 1e-5


def test_multihead_attention_that_computes_attention_itself_is_reported() -> None:
    with pytest.raises(babn.errors.NothingToConvertError, match="look like attention: ByHand"):
        babn.inspect(Around(ByHand(16, 4)), multihead_inputs({}))

    both = Around(Both(ByHand(16, 4), nn.MultiheadAttention(16, 4)))
    skipped = babn.inspect(both, multihead_inputs({})).skipped
    assert list(skipped) == ["inner.first"] and "computes attention itself" in str(skipped)


class Both(nn.Module):
    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Any:
        return self.first(query, query, query), self.second(query, key, value)


class ScaledDotProduct(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.options = options

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(self.scale * query, key, value, **self.options)


def vectors(*shapes: tuple[int, ...]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(*shape, generator=generator) for shape in shapes]
    return dict(zip(("query", "key", "value"), made, strict=True))


FOUR = ((2, 4, 5, 8), (2, 4, 6, 8), (2, 4, 6, 7))
THREE = ((3, 5, 8), (3, 6, 8), (3, 6, 7))
FIVE = ((2, 3, 4, 5, 8), (2, 3, 4, 6, 8), (2, 3, 4, 6, 7))
TWO = ((5, 8), (6, 8), (6, 7))
GROUPED = ((2, 4, 5, 8), (2, 2, 6, 8), (2, 2, 6, 8))
SEEN = torch.rand(5, 6, generator=torch.Generator().manual_seed(2)) < 0.7
SEEN[:, 0] = True


@pytest.mark.parametrize(
    ("shapes", "options"),
    [
        (FOUR, {}),
        (FOUR, {"attn_mask": SEEN}),
        (FOUR, {"attn_mask": SEEN.expand(4, 5, 6)}),
        (FOUR, {"attn_mask": SEEN.expand(2, 1, 5, 6)}),
        (FOUR, {"attn_mask": BIAS}),
        (FOUR, {"attn_mask": BIAS.masked_fill(~SEEN, -torch.inf)}),
        (FOUR, {"is_causal": True}),
        (FOUR, {"scale": 1.0}),
        (GROUPED, {"enable_gqa": True}),
        (GROUPED, {"enable_gqa": True, "is_causal": True}),
        (THREE, {}),
        (THREE, {"attn_mask": SEEN}),
        (THREE, {"attn_mask": SEEN.expand(3, 5, 6)}),
        (THREE, {"attn_mask": BIAS, "scale": 0.5}),
        (THREE, {"is_causal": True}),
        (FIVE, {}),
        (FIVE, {"attn_mask": SEEN}),
        (FIVE, {"attn_mask": SEEN.expand(2, 1, 1, 5, 6)}),
        (FIVE, {"attn_mask": SEEN.expand(3, 1, 5, 6)}),
        (TWO, {"attn_mask": SEEN}),
        (TWO, {"is_causal": True}),
    ],
)
def test_scaled_dot_product_attention_with_every_option(
    shapes: tuple[tuple[int, ...], ...], options: dict[str, Any]
) -> None:
    check(ScaledDotProduct(**options), vectors(*shapes))


def test_a_converted_forward_has_the_signature_of_its_own_class() -> None:
    class Other(ScaledDotProduct):
        def forward(self, query: Tensor) -> Tensor:
            return super().forward(query, query, query)

    models = ScaledDotProduct(), Other()
    for model, count in zip(models, (3, 1), strict=True):
        inputs = tuple(vectors(*FOUR).values())[:count]
        babn.convert(model, babn.BeliefConfig.pairs(max_length=16), inputs)

    found = [list(inspect.signature(model.forward).parameters) for model in models]
    assert found == [["query", "key", "value"], ["query"]]


def test_nested_tensors_are_refused() -> None:
    model, inputs = ScaledDotProduct(), vectors((2, 4, 5, 8), (2, 4, 5, 8), (2, 4, 5, 8))
    babn.convert(model, babn.BeliefConfig.pairs(max_length=16), inputs)
    sequences = [torch.randn(length, 4, 8) for length in (3, 5)]
    nested = torch.nested.nested_tensor(sequences, layout=torch.jagged).transpose(1, 2)

    with pytest.raises(babn.errors.UnsupportedAttentionError, match="padded tensors"):
        model(nested, nested, nested)


def test_grouped_heads_without_a_batch() -> None:
    inputs = vectors((4, 5, 8), (2, 6, 8), (2, 6, 8))
    check(ScaledDotProduct(enable_gqa=True), inputs)


@pytest.mark.parametrize("enlarged", [True, False], ids=["nested", "plain"])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("side", ["right", "left"])
def test_the_fast_path_of_torch_is_reproduced_at_tokens(side: str, enlarged: bool) -> None:
    layer = nn.TransformerEncoderLayer(16, 4, 24, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=enlarged).eval()
    x = torch.randn(2, 7, 16)
    pad = torch.zeros(2, 7, dtype=torch.bool)
    pad[1, :2] = True
    pad = pad if side == "left" else pad.flip(1)
    batch = {"src": x, "src_key_padding_mask": pad}
    with torch.no_grad():
        expected = model(**batch)
        babn.convert(model, babn.BeliefConfig.pairs(max_length=16, sigma=0.0), batch)
        assert gap([expected[~pad]], [model(**batch)[~pad]]) < 1e-5


def test_a_method_of_the_root_that_calls_attention_is_converted() -> None:
    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def attend(self, x: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(x, x, x)

        def forward(self, x: Tensor) -> Tensor:
            return self.attend(self.linear(x)) + self.attend(x)

    x = torch.randn(2, 5, 8)
    model = Root().eval()
    expected = model(x)
    babn.convert(model, babn.BeliefConfig.pairs(max_length=16, sigma=0.0), x)

    assert gap([expected], [model(x)]) < 1e-5
    assert [chain.name for chain in model.babn.chains] == ["root"]
