"""How a choice of layers is written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import babn
from babn.attention.method import normalized_layers
from babn.errors import ConfigError


@pytest.mark.parametrize(
    ("given_", "kept"),
    [
        ("all", "all"),
        ("last:4", "last:4"),
        ("first:1, last:1", "first:1,last:1"),
        ([0, 2, 5], "0,2,5"),
        ((-1,), "-1"),
        ("0, 2,5", "0,2,5"),
        ("*.encoder_attn", "*.encoder_attn"),
        ("model.layers.[12].self_attn", "model.layers.[12].self_attn"),
    ],
)
def test_every_form_is_understood(given_: str | list[int], kept: str) -> None:
    config = babn.BeliefConfig.pairs(layers=given_)
    assert config.layers == kept
    assert babn.MethodConfig.from_dict(config.to_dict()) == config


WRONG = ("", ",", "last:0", "last:", "lst:4", "last4", "first-2", "0;2", "last:-1", [], ())


@pytest.mark.parametrize("layers", WRONG)
def test_other_forms_are_refused(layers: str | list[int]) -> None:
    with pytest.raises(ConfigError, match=r'layers=.* is invalid. Give "all", "first:2"'):
        babn.BeliefConfig.pairs(layers=layers)


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize("layers", [[True], [0.5], ["0"], None, 3])
def test_other_types_are_refused(layers: object) -> None:
    with pytest.raises(ConfigError, match="layers="):
        babn.BeliefConfig.pairs(layers=layers)


@given(st.lists(st.integers(-99, 99), min_size=1))
def test_lists_and_text_are_one(numbers: list[int]) -> None:
    assert normalized_layers(numbers) == normalized_layers(", ".join(map(str, numbers)))
