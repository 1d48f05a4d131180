"""Generation with uncertainty, against models run text by text and token by token."""

from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor

import babn
from babn.attention.noise_source import FixedNoise, fold_in
from babn.conversion.override import overriding
from babn.errors import ConfigError, NotConvertedError, SamplesError
from models import CASES, GROUPED, Case, cases, enlarge

LENGTH, NEW, SAMPLES = 6, 5, 3
GREEDY = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
FIXED_LENGTH = {**GREEDY, "min_new_tokens": NEW}


def prompts() -> dict[str, Tensor]:
    """Two prompts, the first padded on the left."""
    ids = torch.randint(3, 99, (2, LENGTH), generator=torch.Generator().manual_seed(3))
    seen = torch.ones_like(ids)
    seen[0, :2] = 0
    return {"input_ids": ids, "attention_mask": seen}


def seed_of(sample: int, row: int, seed: int = 0) -> int:
    return fold_in(fold_in(seed, sample), row)


@torch.no_grad()
def probabilities(model: Any, tokens: Tensor, seed: int) -> Tensor:
    """Next-token probabilities of one text, in one pass without padding."""
    with overriding(model, mode="sample", noise_source=FixedNoise((seed,))):
        return model(input_ids=tokens[None]).logits[0].double().softmax(-1)


@pytest.mark.thorough
@pytest.mark.parametrize("case", cases("gpt2", "llama", "gemma2"))
def test_tokens_are_scored_as_if_each_text_were_alone(case: Case) -> None:
    model = case.converted(rho=0.1, sigma=0.05)
    found = babn.generate(model, prompts(), SAMPLES, texts=False, **FIXED_LENGTH)

    assert torch.equal(found.sequences, model.generate(**prompts(), **FIXED_LENGTH))
    assert found.prompt_length == LENGTH and found.texts is None
    for row, padding in enumerate((2, 0)):
        text = found.sequences[row, padding:]
        p = torch.stack([probabilities(model, text, seed_of(s, row)) for s in range(SAMPLES)])
        p = p[:, LENGTH - padding - 1 : -1]
        own = p.gather(-1, found.new_tokens[row].expand(SAMPLES, -1)[..., None])[..., 0]
        mean = p.mean(0)
        entropy = -(mean * mean.log()).sum(-1)
        expected = -(p * p.log()).sum(-1).mean(0)
        close = {"rtol": 1e-3, "atol": 1e-4, "check_dtype": False}
        torch.testing.assert_close(found.tokens.log_probs[:, row], own.log(), **close)
        torch.testing.assert_close(found.tokens.entropy[row], entropy, **close)
        torch.testing.assert_close(found.tokens.expected_entropy[row], expected, **close)


@pytest.mark.thorough
@pytest.mark.parametrize("case", cases("gpt2", "llama", "bart", "t5"))
def test_texts_are_scored_by_the_logits_that_wrote_them(case: Case) -> None:
    model = case.converted(rho=0.05)
    found = babn.generate(model, prompts(), 2, seed=4, samples_per_pass=1, **FIXED_LENGTH).texts
    for sample in range(2):
        seeds = [seed_of(sample, row, seed=4) for row in range(2)]
        padding = (0, 0) if case.kind == "seq2seq" else (2, 0)
        with overriding(model, mode="sample", noise_source=FixedNoise(seeds, padding)):
            made = model.generate(
                **prompts(), **FIXED_LENGTH, return_dict_in_generate=True, output_logits=True
            )
        assert torch.equal(found.sequences[sample], made.sequences)
        words = made.sequences[:, -NEW:, None]
        log_probs = torch.stack(made.logits, 1).log_softmax(-1).gather(-1, words)[..., 0]
        torch.testing.assert_close(
            found.log_probs[sample][:, -NEW:], log_probs, rtol=1e-3, atol=1e-4
        )


def test_how_many_samples_share_a_pass_changes_nothing() -> None:
    model = CASES["llama"].converted(rho=0.05)
    one, three = (
        babn.generate(model, prompts(), 3, samples_per_pass=n, **FIXED_LENGTH) for n in (1, 3)
    )
    assert torch.equal(one.texts.sequences, three.texts.sequences)
    torch.testing.assert_close(one.texts.log_probs, three.texts.log_probs)
    torch.testing.assert_close(one.tokens.entropy, three.tokens.entropy)


def test_seeds_determine_samples() -> None:
    model = CASES["llama"].converted(rho=0.02)
    drawn = {**FIXED_LENGTH, "do_sample": True}
    first, again, other = (babn.generate(model, prompts(), 2, s, **drawn) for s in (0, 0, 1))
    assert torch.equal(first.sequences, again.sequences)
    assert torch.equal(first.texts.sequences, again.texts.sequences)
    assert not torch.equal(first.tokens.log_probs, other.tokens.log_probs)
    state = torch.random.get_rng_state()
    babn.generate(model, prompts(), 1, 0, texts=False, **drawn)
    assert torch.equal(state, torch.random.get_rng_state())
    free = [babn.generate(model, prompts(), 1, None, texts=False, **GREEDY) for _ in range(2)]
    assert not torch.equal(*(x.tokens.log_probs for x in free))


def test_beams_share_the_noise_of_their_prompt() -> None:
    model = CASES["llama"].converted(rho=0.05)
    beams = {**FIXED_LENGTH, "num_beams": 3}
    cached = babn.generate(model, prompts(), 2, **beams, use_cache=True)
    uncached = babn.generate(model, prompts(), 2, **beams, use_cache=False)
    assert torch.equal(cached.texts.sequences, uncached.texts.sequences)
    assert cached.texts.log_probs.shape == (2, 2, NEW)


def test_texts_of_different_lengths_are_padded() -> None:
    """The end-of-text token is a word that only some samples generate."""
    model = CASES["llama"].converted(rho=0.01)
    free = babn.generate(model, prompts(), 4, **FIXED_LENGTH).texts.sequences[..., LENGTH:]
    differing = (free != free[:1]).any(0)[0].nonzero()[0, 0]
    end = int(free[0, 0, differing])
    found = babn.generate(model, prompts(), 4, samples_per_pass=1, eos_token_id=end, **GREEDY)
    lengths = found.texts.seen.sum(-1)
    assert lengths[0, 0] == differing + 1 and lengths.unique().numel() > 1
    assert (found.texts.sequences[..., LENGTH:][~found.texts.seen] == 0).all()
    assert not found.texts.log_probs[~found.texts.seen].any()


def test_without_noise_mutual_information_is_zero() -> None:
    model = babn.convert(CASES["gpt2"].model(), babn.SoftmaxConfig())
    found = babn.generate(model, prompts()["input_ids"], 3, **FIXED_LENGTH)
    assert found.tokens.mutual_information.max() < 1e-5
    assert (found.texts.agreement == 1).all() and (found.texts.distinct == 1).all()
    assert torch.equal(found.texts.sequences[0], found.sequences)


def test_more_noise_means_more_mutual_information() -> None:
    noisy, calm = (CASES["llama"].converted(rho=rho) for rho in (0.02, 50.0))
    informed, sure = (
        babn.generate(m, prompts(), 6, texts=False, **FIXED_LENGTH).tokens for m in (noisy, calm)
    )
    assert (informed.sequence_mutual_information > 3 * sure.sequence_mutual_information).all()


def test_scores_are_divided_by_the_temperature() -> None:
    model = CASES["llama"].converted()
    before = babn.generate(model, prompts(), 2, texts=False, **FIXED_LENGTH).tokens
    babn.set_temperature(model, 4.0)
    after = babn.generate(model, prompts(), 2, texts=False, **FIXED_LENGTH).tokens
    assert (after.entropy > before.entropy).all()


def test_training_mode_is_restored() -> None:
    model = CASES["llama"].converted().train()
    babn.generate(model, prompts(), 1, texts=False, **GREEDY)
    assert model.training


def test_impossible_arguments_are_refused() -> None:
    model = CASES["llama"].converted()
    with pytest.raises(SamplesError, match="samples=0"):
        babn.generate(model, prompts(), 0)
    with pytest.raises(ConfigError, match="num_return_sequences=2 is not supported here"):
        babn.generate(model, prompts(), num_return_sequences=2)
    with pytest.raises(ConfigError, match="inputs has no tensor"):
        babn.generate(model, {"max_length": 3})
    with pytest.raises(NotConvertedError, match=r"babn\.convert"):
        babn.generate(CASES["llama"].model(), prompts())
    with pytest.raises(ConfigError, match="BertForTokenClassification has no generate"):
        babn.generate(CASES["bert"].converted(), prompts())


@pytest.mark.thorough
def test_a_longer_text_than_any_before() -> None:
    """Neither maps over heads nor rotary positions have a maximum length."""
    config = hf.LlamaConfig(**GROUPED | {"num_hidden_layers": 2})
    model = babn.convert(
        enlarge(hf.LlamaForCausalLM(config), 0.15), babn.BeliefConfig.pairs(upward="heads")
    )
    long = {"max_new_tokens": 60, "min_new_tokens": 60, "do_sample": False}
    found = babn.generate(model, prompts(), 2, **long)
    assert found.texts.sequences.shape == (2, 2, 66)
    assert found.tokens.entropy.isfinite().all()
