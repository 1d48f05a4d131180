"""Whether uncertainty maps are about the input."""

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

import babn
from babn.errors import ConfigError
from babn.evaluation.content import (
    content_table,
    correlation_between,
    explained_by_position,
    map_content,
)

ALL = torch.ones(2, 4, 5, dtype=torch.bool)


def test_maps_of_position_alone_are_found_out() -> None:
    torch.manual_seed(0)
    by_position = torch.randn(1, 2, 1, 5, dtype=torch.float64).expand(3, 2, 4, 5)
    assert explained_by_position(by_position, ALL) == pytest.approx(1)
    assert correlation_between(by_position, ALL) == pytest.approx(1)
    free = torch.randn(200, 2, 4, 5, dtype=torch.float64)
    assert explained_by_position(free, ALL) < 0.01
    assert abs(correlation_between(free, ALL)) < 0.01


def test_agrees_with_a_plain_computation_where_pairs_are_masked() -> None:
    torch.manual_seed(1)
    x = torch.randn(6, 2, 4, 5, dtype=torch.float64)
    seen = torch.rand(2, 4, 5) > 0.4
    groups = [
        x[:, h, seen[h, :, k], k].flatten().numpy()
        for h in range(2)
        for k in range(5)
        if seen[h, :, k].any()
    ]
    everything = np.concatenate(groups)
    within = sum(((g - g.mean()) ** 2).sum() for g in groups)
    total = ((everything - everything.mean()) ** 2).sum()
    assert explained_by_position(x, seen) == pytest.approx(1 - within / total)
    corr = np.corrcoef(x[:, seen].numpy())
    assert correlation_between(x, seen) == pytest.approx(corr[np.triu_indices(6, 1)].mean())


def bert(config: babn.RuleConfig, seed: int) -> BertModel:
    """The same BERT each time, with what conversion adds from a seed of its own."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 32}
    model = BertModel(
        BertConfig(vocab_size=60, num_hidden_layers=2, initializer_range=0.3, **sizes)
    )
    torch.manual_seed(seed)
    return babn.convert(model, config).eval()


def texts() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(3, 60, (12, 10), generator=torch.Generator().manual_seed(5))}


def maps(model: BertModel) -> torch.Tensor:
    found = babn.attention(model, texts())
    return torch.stack([one.variable_relative_std for one in found]).log()


def test_noise_per_key_is_about_the_input_and_not_about_the_initialisation() -> None:
    first, second = (bert(babn.BeliefConfig(), seed) for seed in (1, 2))
    for one in map_content(first, texts()):
        assert one.by_position < 0.6
        assert one.between_texts < one.weights_between_texts + 0.15
    assert torch.equal(maps(first), maps(second))


def test_noise_from_random_maps_over_keys_is_not() -> None:
    first, second = (bert(babn.BeliefConfig(), seed) for seed in (1, 2))
    found = torch.stack([maps(first).flatten(), maps(second).flatten()])
    assert torch.corrcoef(found)[0, 1] < 0.5


def test_causal_models_count_the_pairs_that_are_seen() -> None:
    from transformers import GPT2Config, GPT2Model

    torch.manual_seed(0)
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    sizes = {"vocab_size": 60, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32}
    model = babn.convert(GPT2Model(GPT2Config(**sizes, **ends)), babn.BeliefConfig())
    found = map_content(model, texts())
    assert len(found) == 2 and all(0 <= one.by_position <= 1 for one in found)
    table = content_table(found)
    assert table.count("\n") == 4 and "mean" in table.splitlines()[-1]


def test_padding_is_refused() -> None:
    batch = texts()
    mask = torch.ones_like(batch["input_ids"])
    mask[0, -1] = 0
    model = bert(babn.BeliefConfig(), 0)
    with pytest.raises(ConfigError, match="without padding"):
        map_content(model, {**batch, "attention_mask": mask})
