"""Whether uncertainty maps depend on the input."""

import numpy as np
import pytest
import torch
from map_measures import correlation_between, explained_by_position, map_content
from transformers import BertConfig, BertForSequenceClassification

import babn
from babn.attention.prior import KeyNetwork
from babn.errors import ConfigError

ALL = torch.ones(2, 4, 5, dtype=torch.bool)


def test_maps_that_depend_on_position_alone_are_detected() -> None:
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


def bert(config: babn.MethodConfig, seed: int) -> BertForSequenceClassification:
    """The same BERT each time; the seed changes only the parameters that conversion adds."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 32}
    model = BertForSequenceClassification(
        BertConfig(vocab_size=60, num_hidden_layers=2, initializer_range=0.3, **sizes)
    )
    torch.manual_seed(seed)
    babn.convert(model, config)
    for module in model.modules():
        if isinstance(module, KeyNetwork):
            module.inner.reset_parameters()
            module.outer.reset_parameters()
    return model.eval()


def texts(count: int = 12, seed: int = 5) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {"input_ids": torch.randint(3, 60, (count, 10), generator=generator)}


def fit(model: BertForSequenceClassification, steps: int = 60) -> BertForSequenceClassification:
    """Trains whether a text has one of ten words, with the same batches for every model."""
    torch.manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model.train()
    for step in range(steps):
        batch = texts(32, 100 + step)
        loss = model(**batch, labels=(batch["input_ids"] < 7).any(1).long()).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def agreement(first: torch.nn.Module, second: torch.nn.Module) -> list[float]:
    """Correlation of two models' uncertainty maps in each layer."""
    both = [babn.attention_maps(model, texts()) for model in (first, second)]
    return [
        float(torch.corrcoef(torch.stack([x.relative_std.log().flatten() for x in pair]))[0, 1])
        for pair in zip(*both, strict=True)
    ]


@pytest.mark.parametrize("training", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_maps_depend_on_the_input_and_not_on_the_initialisation(training: bool) -> None:
    first, second = (bert(babn.BeliefConfig(), seed) for seed in (1, 2))
    if training:
        first, second = fit(first), fit(second)
    for level in (1.0, 0.5, 2.0):
        for model in (first, second):
            babn.set_noise_level(model, level)
        found = map_content(first, texts())
        assert len(found) == 2
        assert max(one.by_position for one in found) <= 0.6
        assert sum(one.by_position for one in found) / len(found) <= 0.5
        assert max(one.between_texts - one.weights_between_texts for one in found) <= 0.15
        assert min(agreement(first, second)) >= 0.7


def test_conversion_is_the_same_for_every_seed_and_draws_nothing() -> None:
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 32}
    states = []
    for seed in (1, 2):
        torch.manual_seed(0)
        model = BertForSequenceClassification(BertConfig(vocab_size=60, **sizes))
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        states.append(babn.convert(model).state_dict())
        assert torch.equal(before, torch.get_rng_state())
    for first, second in zip(*(state.values() for state in states), strict=True):
        assert torch.equal(first, second)


def test_noise_over_pairs_from_random_maps_over_keys_is_not() -> None:
    first, second = (bert(babn.BeliefConfig.pairs(), seed) for seed in (1, 2))
    found = [
        torch.cat([m.variable_relative_std.flatten() for m in babn.attention_maps(model, texts())])
        for model in (first, second)
    ]
    assert torch.corrcoef(torch.stack(found).log())[0, 1] < 0.5


def test_causal_models_count_the_pairs_that_are_seen() -> None:
    from transformers import GPT2Config, GPT2Model

    torch.manual_seed(0)
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    sizes = {"vocab_size": 60, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32}
    model = babn.convert(GPT2Model(GPT2Config(**sizes, **ends)), babn.BeliefConfig())
    found = map_content(model, texts())
    assert len(found) == 2 and all(0 <= one.by_position <= 1 for one in found)


def test_keys_can_be_left_out() -> None:
    model, batch = bert(babn.BeliefConfig(), 0), texts()
    batch["input_ids"][:, [0, -1]] = torch.tensor([1, 2])  # the same tokens in all texts
    found, inner = map_content(model, batch), map_content(model, batch, without=(0, -1))
    maps = babn.attention_maps(model, batch)
    for one, part, whole in zip(maps, inner, found, strict=True):
        x = one.relative_std.double().log()[..., 1:-1]
        everything = torch.ones(x.shape[1:], dtype=torch.bool)
        assert part.by_position == pytest.approx(explained_by_position(x, everything))
        assert part.between_texts == pytest.approx(correlation_between(x, everything))
        assert part.by_position < whole.by_position
    with pytest.raises(ConfigError, match="10 keys"):
        map_content(model, batch, without=(10,))


def test_padding_is_refused() -> None:
    batch = texts()
    mask = torch.ones_like(batch["input_ids"])
    mask[0, -1] = 0
    model = bert(babn.BeliefConfig(), 0)
    with pytest.raises(ConfigError, match="without padding"):
        map_content(model, {**batch, "attention_mask": mask})


def test_a_single_input_is_refused() -> None:
    with pytest.raises(ConfigError, match="two or more"):
        map_content(bert(babn.BeliefConfig(), 0), texts(1))


@pytest.mark.parametrize("config", [babn.BeliefConfig(), babn.BeliefConfig.pairs()])
def test_no_noise_is_refused(config: babn.MethodConfig) -> None:
    model = bert(config, 0)
    babn.set_noise_level(model, 0.0)
    with pytest.raises(ConfigError, match=r"noise level is 0.*set_noise_level"):
        map_content(model, texts())
    babn.set_noise_level(model, 1.0)
    assert len(map_content(model, texts())) == 2


def test_softmax_attention_is_refused() -> None:
    with pytest.raises(ConfigError, match="method that has noise"):
        map_content(bert(babn.SoftmaxConfig(), 0), texts())


def test_weights_that_underflow_are_not_taken_for_padding() -> None:
    model = bert(babn.BeliefConfig(), 0)
    query = model.bert.encoder.layer[0].attention.self.query
    with torch.no_grad():
        query.weight.mul_(200)
        query.bias.mul_(200)
    weights = babn.attention_maps(model, texts())[0].mean
    assert (weights == 0).any() and (weights > 0).any()
    for one in map_content(model, texts()):
        values = (one.by_position, one.between_texts, one.weights_between_texts)
        assert all(abs(value) <= 1 for value in values)


def test_calls_of_a_single_key_are_left_out() -> None:
    from transformers import T5Config, T5Model

    torch.manual_seed(0)
    sizes = {"vocab_size": 60, "d_model": 32, "d_kv": 8, "d_ff": 32, "num_heads": 4}
    model = babn.convert(T5Model(T5Config(**sizes, num_layers=1)))
    start = torch.zeros(12, 1, dtype=torch.long)
    found = map_content(model.eval(), {**texts(), "decoder_input_ids": start})
    assert len(babn.attention_maps(model, {**texts(), "decoder_input_ids": start})) == 3
    assert len(found) == 2 and not any(one.by_position != one.by_position for one in found)
