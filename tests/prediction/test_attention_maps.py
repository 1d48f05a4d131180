"""Attention maps: posterior mean weights and their relative std."""

import pytest
import torch
from scipy import stats
from small_prediction import DOUBTFUL, TorchClassifier, bart, bert, converted, words
from torch import Tensor

import babn
from babn.errors import NotConvertedError

CHAIN = "bert.encoder.layer.*.attention.self"


def real_keys(batch: dict[str, Tensor]) -> Tensor:
    return batch["attention_mask"].bool()[:, None, None, :]


def test_one_map_for_each_call_in_order() -> None:
    maps = babn.attention_maps(converted(), words())
    assert [m.name for m in maps] == [f"{CHAIN}/0", f"{CHAIN}/1"]
    assert all(m.mean.shape == m.relative_std.shape == (4, 4, 7, 7) for m in maps)


def test_means_are_the_weights_that_evaluation_uses() -> None:
    model = converted()
    used = model(**words(), output_attentions=True).attentions
    for one, weights in zip(babn.attention_maps(model, words()), used, strict=True):
        torch.testing.assert_close(one.mean, weights)


@pytest.mark.parametrize("config", [DOUBTFUL, babn.BamConfig()], ids=lambda c: c.name)
def test_rows_sum_to_one_over_real_keys(config: babn.MethodConfig) -> None:
    real = real_keys(words())
    for one in babn.attention_maps(converted(config), words()):
        seen = real.expand_as(one.mean)
        torch.testing.assert_close(one.mean.sum(-1), torch.ones(4, 4, 7))
        assert (one.mean[~seen] == 0).all() and (one.relative_std[~seen] == 0).all()
        assert (one.mean[seen] > 0).all() and (one.variable_relative_std[seen] > 0).all()
        assert (one.relative_std[seen & (one.mean < 1)] > 0).all()


@pytest.mark.parametrize("k", [1.0, 10.0, 100.0])
def test_relative_std_of_bam_is_that_of_its_weibull(k: float) -> None:
    weibull = stats.weibull_min(k)
    expected = torch.full((), weibull.std() / weibull.mean(), dtype=torch.float32)
    for one in babn.attention_maps(converted(babn.BamConfig(k=k)), words()):
        found = one.variable_relative_std[real_keys(words()).expand_as(one.mean)]
        torch.testing.assert_close(found, expected.expand_as(found), rtol=1e-5, atol=0)


def test_relative_std_of_softmax_is_zero() -> None:
    maps = babn.attention_maps(converted(babn.SoftmaxConfig()), words())
    assert all((m.relative_std == 0).all() for m in maps)


def test_relative_std_of_mc_dropout_is_that_of_a_bernoulli() -> None:
    for one in babn.attention_maps(converted(babn.McDropoutConfig(p=0.2)), words()):
        found = one.relative_std[real_keys(words()).expand_as(one.mean)]
        torch.testing.assert_close(found, torch.full_like(found, 0.5))


def test_self_and_cross_attention_of_bart() -> None:
    model = babn.convert(bart(), DOUBTFUL)
    batch = {**words(), "decoder_input_ids": words()["input_ids"][:, :3]}
    maps = babn.attention_maps(model, batch)
    encoder, own, cross = (
        "model.encoder.layers.*.self_attn",
        "model.decoder.layers.*.self_attn",
        "model.decoder.layers.*.encoder_attn",
    )
    assert [m.name for m in maps] == [
        *(f"{encoder}/{step}" for step in range(2)),
        *(f"{chain}/{step}" for step in range(2) for chain in (own, cross)),
    ]
    sizes = {encoder: (7, 7), own: (3, 3), cross: (3, 7)}
    for one in maps:
        assert one.mean.shape[-2:] == sizes[one.name.rpartition("/")[0]]
        torch.testing.assert_close(one.mean.sum(-1), torch.ones(one.mean.shape[:-1]))
        if own in one.name:
            assert (one.mean.triu(1) == 0).all() and (one.relative_std.triu(1) == 0).all()
        else:
            assert (one.mean[-1, ..., -2:] == 0).all()


def test_plain_torch_models() -> None:
    x = torch.randn(4, 5, 16)
    model = babn.convert(TorchClassifier(), DOUBTFUL, example_inputs=x)
    (one,) = babn.attention_maps(model, x)
    assert one.name == "attention/0"
    torch.testing.assert_close(one.mean.sum(-1), torch.ones(4, 2, 5))


def test_model_and_random_state_are_left_alone() -> None:
    model, state = converted().train(), torch.get_rng_state()
    maps = babn.attention_maps(model, words())
    assert all(module.training for module in model.modules())
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(m.mean.requires_grad or m.relative_std.requires_grad for m in maps)


def test_a_model_that_is_not_converted_is_refused() -> None:
    with pytest.raises(NotConvertedError, match="not converted"):
        babn.attention_maps(bert(), words())
