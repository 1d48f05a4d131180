"""Which attention calls form a belief network together."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import babn
from models import CASES, Case, vector_batch


def chains(case: Case) -> list[tuple[str, int]]:
    return [(c.name, len(c.calls)) for c in babn.inspect(case.model(), case.example).chains]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bert", [("bert.encoder.layer.*.attention.self", 3)]),
        ("albert", [("albert.encoder.albert_layer_groups.*.albert_layers.*.attention", 3)]),
        ("llama", [("model.layers.*.self_attn", 3)]),
        ("mistral", [("model.layers.*.self_attn", 3)]),
        (
            "bart",
            [
                ("model.encoder.layers.*.self_attn", 2),
                ("model.decoder.layers.*.self_attn", 3),
                ("model.decoder.layers.*.encoder_attn", 3),
            ],
        ),
        ("gemma2", [("model.layers.*.self_attn#0", 2), ("model.layers.*.self_attn#1", 1)]),
        ("modernbert", [("model.layers.*.attn#0", 1), ("model.layers.*.attn#1", 2)]),
        (
            "clip",
            [
                ("vision_model.encoder.layers.*.self_attn", 3),
                ("text_model.encoder.layers.*.self_attn", 3),
            ],
        ),
        (
            "torch-transformer",
            [
                ("inner.encoder.layers.*.self_attn", 2),
                ("inner.decoder.layers.*.self_attn", 2),
                ("inner.decoder.layers.*.multihead_attn", 2),
            ],
        ),
        ("handmade", [("layers.*", 2)]),
    ],
)
def test_chains_are_what_one_expects(name: str, expected: list[tuple[str, int]]) -> None:
    assert chains(CASES[name]) == expected


@pytest.mark.parametrize("name", ["t5", "whisper"])
def test_encoders_with_decoders_have_three(name: str) -> None:
    assert [steps for _, steps in chains(CASES[name])] == ([3, 3, 3] if name == "t5" else [2, 3, 3])


@pytest.mark.parametrize(("name", "expected"), [("albert", (0, 0, 0)), ("bert", (0, 1, 2))])
def test_calls_of_one_module_share_parameters(name: str, expected: tuple[int, ...]) -> None:
    model = CASES[name].converted()
    (method,) = model.babn.rules

    assert method.parameter_sets == expected
    assert len(method.posterior_nets) == len(method.prior_nets) == max(expected) + 1


def test_windowed_and_full_attention_are_apart() -> None:
    first, second = babn.inspect(CASES["gemma2"].model()).chains

    assert all(call.windowed for call in first.calls)
    assert not any(call.windowed for call in second.calls)


def test_steps_are_in_the_order_of_the_pass() -> None:
    model = CASES["bart"].converted()
    names = [x.name for x in babn.attention_maps(model, CASES["bart"].batch())]

    assert names[:2] == [f"model.encoder.layers.*.self_attn/{i}" for i in range(2)]
    assert names[2:4] == [
        f"model.decoder.layers.*.{part}/0" for part in ("self_attn", "encoder_attn")
    ]


class Shared(nn.Module):
    """One attention module that looks at its own sequence and at another in turn, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        for key in (None, other, None, other):
            key = x if key is None else key
            x = x + self.attention(x, key, key)[0]
        return x


def test_a_module_with_two_uses_finds_its_place_each_time() -> None:
    batch = {"x": vector_batch()["x"], "other": torch.randn(2, 4, 16)}
    model = babn.convert(Shared(), babn.BeliefConfig.pairs(max_length=16), batch)
    assert [len(chain.calls) for chain in model.babn.chains] == [2, 2]

    maps = babn.attention_maps(model, batch)

    assert [x.mean.shape[-1] for x in maps] == [7, 4, 7, 4]
    assert [x.name for x in maps] == [
        "attention#0/0",
        "attention#1/0",
        "attention#0/1",
        "attention#1/1",
    ]


class Twice(nn.Module):
    """One attention module under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.MultiheadAttention(16, 4, batch_first=True)
        self.second = self.first

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.first, self.second):
            x = x + layer(x, x, x)[0]
        return x


def test_a_module_with_two_names_has_one_parameter_set() -> None:
    x = vector_batch()["x"]
    model = babn.convert(Twice(), babn.BeliefConfig.pairs(max_length=16), x)

    assert model.babn.rules[0].parameter_sets == (0, 0)
    assert torch.isfinite(model.train()(x)).all()
    assert babn.belief_kl(model) > 0


def test_the_upward_path_starts_from_the_first_call_of_its_chain() -> None:
    """Layers of one chain share a state that depends on the first layer's scores alone."""
    case = CASES["bert"]
    model, batch = case.converted(rho=50.0), case.batch()
    first = [x.relative_std for x in babn.attention_maps(model, batch)]
    with torch.no_grad():
        model.bert.encoder.layer[0].attention.self.query.weight.mul_(3)
    second = [x.relative_std for x in babn.attention_maps(model, batch)]

    assert all(not torch.equal(x, y) for x, y in zip(first, second, strict=True))


class BothWays(nn.Module):
    """Two sequences look at each other by one module."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        one = F.scaled_dot_product_attention(a, b, b)
        other = F.scaled_dot_product_attention(b, a, a)
        return one.sum((1, 2)) + other.sum((1, 2))


def sequence(length: int) -> Tensor:
    return torch.randn(2, 1, length, 8, generator=torch.Generator().manual_seed(length))


def test_calls_that_were_alike_in_the_dry_run_only_say_so() -> None:
    alike = babn.convert(
        BothWays(), babn.BeliefConfig.pairs(max_length=8), (sequence(4), sequence(4))
    )
    with pytest.raises(babn.errors.ConversionError, match=r"4 queries and 5 keys.*example_inputs"):
        alike.eval()(sequence(5), sequence(4))
    apart = babn.convert(
        BothWays(), babn.BeliefConfig.pairs(max_length=8), (sequence(5), sequence(4))
    )
    assert len(babn.inspect(apart).chains) == 2
    assert apart.eval()(sequence(6), sequence(3)).isfinite().all()
