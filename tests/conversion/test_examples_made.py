"""Inputs that are made for the dry run."""

import pytest
import transformers as hf

from babn.conversion.example_inputs import PREMISE, example_call


@pytest.mark.parametrize(("separator", "stands"), [(7, True), (102, False)])
def test_a_separator_outside_the_vocabulary_is_left_out(separator: int, stands: bool) -> None:
    config = hf.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, sep_token_id=separator,
    )  # fmt: skip
    _, inputs = example_call(hf.BertModel(config), None)
    assert inputs["input_ids"].max() < 50
    assert bool((inputs["input_ids"][:, PREMISE] == separator).all()) == stands
