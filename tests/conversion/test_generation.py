"""Generation: a cache changes nothing, whatever the padding."""

from typing import Any

import pytest
import torch
from torch import Tensor

import babn
from models import CASES, Case, cases

TOKENS = 10


def prompts() -> dict[str, Tensor]:
    """Two prompts, the first padded on the left."""
    ids = torch.randint(3, 99, (2, 6), generator=torch.Generator().manual_seed(3))
    seen = torch.ones_like(ids)
    seen[0, :2] = 0
    return {"input_ids": ids, "attention_mask": seen}


def generate(model: Any, **settings: Any) -> Any:
    """Greedy generation of a fixed number of tokens, with the logits of each."""
    return model.generate(
        **{
            **prompts(),
            "max_new_tokens": TOKENS,
            "min_new_tokens": TOKENS,
            "do_sample": False,
            "pad_token_id": 0,
            "return_dict_in_generate": True,
            "output_logits": True,
            **settings,
        }
    )


GENERATORS = cases("gpt2", "llama", "qwen2", "qwen3", "mistral", "gemma2", "bart", "t5")
MORE_GENERATORS = [
    pytest.param(CASES[name], id=name, marks=pytest.mark.thorough)
    for name in ("qwen2", "qwen3", "mistral", "bart", "t5")
]


@pytest.mark.thorough
@pytest.mark.parametrize("case", GENERATORS)
def test_cached_equals_uncached(case: Case) -> None:
    model = case.converted(sigma=0.1)

    cached, uncached = generate(model, use_cache=True), generate(model, use_cache=False)

    assert len(cached.logits) == TOKENS
    assert torch.equal(cached.sequences, uncached.sequences)
    torch.testing.assert_close(
        torch.stack(cached.logits), torch.stack(uncached.logits), rtol=1e-4, atol=1e-5
    )


@pytest.mark.thorough
@pytest.mark.parametrize("case", GENERATORS)
def test_the_mean_without_scale_noise_generates_as_the_original(case: Case) -> None:
    converted, original = generate(case.converted(sigma=0.0)), generate(case.model())

    assert torch.equal(converted.sequences, original.sequences)


@pytest.mark.parametrize("case", cases("llama", "gemma2"))
def test_a_static_cache_equals_none(case: Case) -> None:
    model = case.converted(sigma=0.1)

    static = generate(model, cache_implementation="static", disable_compile=True)
    none = generate(model, use_cache=False)

    torch.testing.assert_close(
        torch.stack(static.logits), torch.stack(none.logits), rtol=1e-4, atol=1e-5
    )


@pytest.mark.thorough
@pytest.mark.parametrize("case", cases("gpt2", "bart"))
def test_beams_with_a_cache_equal_beams_without(case: Case) -> None:
    model = case.converted(sigma=0.1)

    cached = generate(model, num_beams=3, use_cache=True)
    uncached = generate(model, num_beams=3, use_cache=False)

    assert torch.equal(cached.sequences, uncached.sequences)


def test_sampled_attention_generates_other_text_each_time() -> None:
    model = CASES["llama"].converted(rho=0.1)
    with babn.sampling(model, seed=0):
        first, second = generate(model), generate(model)
    with babn.sampling(model, seed=0):
        again = generate(model)

    assert torch.equal(first.logits[0], again.logits[0])
    assert not torch.equal(first.logits[0], second.logits[0])


@pytest.mark.parametrize("case", [*cases("gpt2", "llama", "gemma2"), *MORE_GENERATORS])
def test_cached_equals_uncached_under_one_sample(case: Case) -> None:
    """Two rows, the first padded on the left, past the windows of Mistral and Gemma 2."""
    model = case.converted(rho=0.1, sigma=0.1)
    with babn.sampling(model, seed=0, fixed=True):
        cached, uncached = generate(model, use_cache=True), generate(model, use_cache=False)

    assert torch.equal(cached.sequences, uncached.sequences)
    torch.testing.assert_close(
        torch.stack(cached.logits), torch.stack(uncached.logits), rtol=1e-4, atol=1e-5
    )
    assert not torch.allclose(cached.logits[0], generate(model).logits[0], rtol=1e-3)


@pytest.mark.thorough
@pytest.mark.parametrize("case", cases("llama", "gemma2"))
def test_a_static_cache_equals_none_under_one_sample(case: Case) -> None:
    model = case.converted(rho=0.1, sigma=0.1)
    with babn.sampling(model, seed=0, fixed=True):
        static = generate(model, cache_implementation="static", disable_compile=True)
        none = generate(model, use_cache=False)

    torch.testing.assert_close(
        torch.stack(static.logits), torch.stack(none.logits), rtol=1e-4, atol=1e-5
    )


@pytest.mark.thorough
@pytest.mark.parametrize("case", cases("llama", "mistral"))
def test_a_prompt_in_pieces_equals_a_prompt_at_once(case: Case) -> None:
    model = case.converted(rho=0.1, upward="heads")
    with babn.sampling(model, seed=0, fixed=True):
        pieces = generate(model, prefill_chunk_size=2, disable_compile=True)
        whole = generate(model)

    torch.testing.assert_close(
        torch.stack(pieces.logits), torch.stack(whole.logits), rtol=1e-4, atol=1e-5
    )


def test_each_sequence_keeps_its_own_noise() -> None:
    """A row's text is the same with other neighbours, and two rows of one prompt differ."""
    model = CASES["llama"].converted(rho=0.02)
    prompt = {name: value[1:].repeat(2, 1) for name, value in prompts().items()}
    other = {name: value.clone() for name, value in prompt.items()}
    other["input_ids"][1] = prompts()["input_ids"][0]
    with babn.sampling(model, seed=0, fixed=True):
        first, second = generate(model, **prompt), generate(model, **other)

    assert torch.equal(first.sequences[0], second.sequences[0])
    assert not torch.allclose(first.logits[0][0], first.logits[0][1], rtol=1e-3)


@pytest.mark.thorough
def test_maps_over_heads_generate_beyond_any_length() -> None:
    """Converted with nine tokens and `max_length=4`, which maps over heads do not need."""
    model = CASES["llama"].converted(rho=0.1, upward="heads", max_length=4)
    with babn.sampling(model, seed=0, fixed=True):
        made = generate(model, max_new_tokens=62, min_new_tokens=62)
        none = generate(model, max_new_tokens=62, min_new_tokens=62, use_cache=False)

    assert made.sequences.shape == (2, 68)
    torch.testing.assert_close(made.logits[-1], none.logits[-1], rtol=1e-3, atol=1e-4)


def test_some_layers_alone_generate_alike_with_and_without_a_cache() -> None:
    model = CASES["gemma2"].converted(rho=0.1, layers="last:2")
    with babn.sampling(model, seed=0, fixed=True):
        cached, uncached = generate(model, use_cache=True), generate(model, use_cache=False)

    torch.testing.assert_close(
        torch.stack(cached.logits), torch.stack(uncached.logits), rtol=1e-4, atol=1e-5
    )


def test_fixed_noise_needs_a_seed() -> None:
    model = CASES["llama"].converted()
    wrong = pytest.raises(babn.errors.ConfigError, match="fixed=True needs a seed")
    with wrong, babn.sampling(model, fixed=True):
        pass


def test_whisper_transcribes() -> None:
    case = CASES["whisper"]
    features = case.batch()["input_features"]

    made = case.converted(sigma=0.0).generate(features, max_new_tokens=5, min_new_tokens=5)
    original = case.model().generate(features, max_new_tokens=5, min_new_tokens=5)

    assert torch.equal(made, original)
