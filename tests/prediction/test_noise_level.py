"""The level that multiplies the noise of predictions."""

import pytest
import torch
from small_prediction import bart, bert, converted, words

import babn
from babn.errors import ConfigError, UnsupportedAttentionError

PER_KEY = babn.BeliefConfig()
NOISY = [PER_KEY, babn.BeliefConfig.pairs(rho=1.0, max_length=16), babn.BamConfig(k=2.0)]
noisy = pytest.mark.parametrize("config", NOISY, ids=["per-key", "pairs", "bam"])


def test_a_level_divides_the_shape() -> None:
    model, halved = converted(babn.BamConfig(k=4.0)), converted(babn.BamConfig(k=2.0))
    babn.set_noise_level(model, 2.0)
    found, expected = (babn.predict(m, words(), samples=3) for m in (model, halved))
    torch.testing.assert_close(found.sample_logits, expected.sample_logits)


def test_a_level_multiplies_the_rate_of_dropout() -> None:
    model, doubled = converted(babn.McDropoutConfig(p=0.1)), converted(babn.McDropoutConfig(p=0.2))
    babn.set_noise_level(model, 2.0)
    found, expected = (babn.predict(m, words(), samples=3) for m in (model, doubled))
    torch.testing.assert_close(found.sample_logits, expected.sample_logits)


@noisy
def test_spread_grows_with_the_level_and_zero_is_the_mean(config: babn.MethodConfig) -> None:
    model = converted(config)
    spreads = []
    for level in (0.0, 0.25, 1.0):
        babn.set_noise_level(model, level)
        spreads.append(float(babn.predict(model, words()).std.mean()))
    assert spreads[0] == 0 < spreads[1] < spreads[2]
    babn.set_noise_level(model, 0.0)
    with torch.no_grad():
        mean = model(**words()).logits
    assert torch.equal(babn.predict(model, words(), samples=2).sample_logits[1], mean)


@noisy
def test_training_and_the_kl_do_not_follow_the_level(config: babn.MethodConfig) -> None:
    model = converted(config).train()
    losses = []
    for level in (1.0, 0.0, 3.0):
        babn.set_noise_level(model, level)
        torch.manual_seed(0)
        losses.append(model(**words(), labels=torch.tensor([0, 1, 2, 0])).loss)
    assert losses[0] == losses[1] == losses[2]


def test_noise_beside_dropout_follows_the_level() -> None:
    model = converted(PER_KEY, hidden_dropout_prob=0.0)
    babn.set_noise_level(model, 0.0)
    assert not babn.predict(model, words(), dropout=True).std.any()
    babn.set_noise_level(model, 0.5)
    plain, beside = (babn.predict(model, words(), dropout=on) for on in (False, True))
    torch.testing.assert_close(plain.sample_logits, beside.sample_logits)


def test_maps_show_the_level() -> None:
    model = converted(PER_KEY)
    one = babn.attention_maps(model, words())[0]
    babn.set_noise_level(model, 0.5)
    half = babn.attention_maps(model, words())[0]
    assert torch.equal(one.mean, half.mean)
    seen = one.variable_relative_std > 0
    assert (half.variable_relative_std[seen] < one.variable_relative_std[seen]).all()


def test_the_level_is_saved(tmp_path) -> None:
    model = converted(PER_KEY)
    babn.set_noise_level(model, 0.7)
    model.save_pretrained(tmp_path / "whole")
    assert babn.get_noise_level(babn.load(tmp_path / "whole")) == pytest.approx(0.7)
    babn.save_adapter(model, tmp_path / "part")
    loaded = babn.load_adapter(bert(), tmp_path / "part").eval()
    assert babn.get_noise_level(loaded) == pytest.approx(0.7)
    expected = babn.predict(model, words(), samples=3).sample_logits
    torch.testing.assert_close(babn.predict(loaded, words(), samples=3).sample_logits, expected)


@pytest.mark.parametrize("level", [-1, float("inf"), float("nan"), True])
def test_impossible_levels_are_refused(level) -> None:
    model = converted(PER_KEY)
    with pytest.raises(ConfigError, match="level="):
        babn.set_noise_level(model, level)
    assert babn.get_noise_level(model) == 1


def test_required_kernels_explain_why_they_do_not_apply() -> None:
    model = converted(babn.BeliefConfig.pairs(rho=1.0, max_length=16, kernel="triton"))
    babn.set_noise_level(model, 2.0)
    with pytest.raises(UnsupportedAttentionError, match="level"):
        babn.predict(model, words())


def test_inspect_shows_the_level() -> None:
    model = converted(PER_KEY)
    assert "level" not in str(babn.inspect(model))
    babn.set_noise_level(model, 0.5)
    assert "Noise level of predictions: 0.5" in str(babn.inspect(model))
    assert "bias on keys" in str(babn.inspect(model))


def test_a_key_keeps_its_noise_for_the_whole_text() -> None:
    model = babn.convert(bart(), PER_KEY).eval()
    batch = {**words(2, 6), "decoder_input_ids": words()["input_ids"][:2, :4]}
    with torch.no_grad(), babn.sampling(model, seed=0, fixed=True):
        whole = model(**batch, use_cache=False).logits
        first = model(**{**batch, "decoder_input_ids": batch["decoder_input_ids"][:, :2]})
        rest = model(
            **{**batch, "decoder_input_ids": batch["decoder_input_ids"][:, 2:]},
            past_key_values=first.past_key_values,
        ).logits
    torch.testing.assert_close(torch.cat([first.logits, rest], 1), whole, rtol=1e-4, atol=1e-4)
