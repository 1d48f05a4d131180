"""Generation over loaders and texts, and the methods of its result."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import babn
from babn import Generation
from babn.errors import ConfigError, FormatError, SamplesError
from babn.text import word_tokenizer
from models import CASES

TEXTS = ["wake me at six", "play", "wake me up at six please", "a song", "play a song at six"]
SETTINGS = {"samples": 2, "max_new_tokens": 3, "eos_token_id": None, "progress": False}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return word_tokenizer(TEXTS * 2)


@pytest.fixture(scope="module")
def model(tokenizer: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    config = LlamaConfig(
        vocab_size=len(tokenizer), num_attention_heads=4, initializer_range=0.3, **sizes
    )
    found = babn.convert(LlamaForCausalLM(config), babn.BeliefConfig(rho=0.5))
    found.generation_config.pad_token_id = tokenizer.pad_token_id
    return found


@pytest.fixture(scope="module")
def found(model: Any, tokenizer: Any) -> Generation:
    return babn.generate(model, TEXTS, tokenizer=tokenizer, batch_size=2, **SETTINGS)


def test_batches_of_texts_change_nothing(model: Any, tokenizer: Any, found: Generation) -> None:
    whole = babn.generate(model, TEXTS, tokenizer=tokenizer, batch_size=5, **SETTINGS)
    assert torch.equal(found.sequences, whole.sequences)
    assert found.prompt_length == whole.prompt_length
    assert found.texts is not None and whole.texts is not None
    assert torch.equal(found.texts.sequences, whole.texts.sequences)
    close = {"atol": 1e-4, "rtol": 1e-3}
    torch.testing.assert_close(found.tokens.log_probs, whole.tokens.log_probs, **close)
    torch.testing.assert_close(found.tokens.entropy, whole.tokens.entropy, **close)
    assert found.tokens.mutual_information.max() > 1e-3


def test_a_text_alone_has_the_words_that_it_has_among_others(
    model: Any, tokenizer: Any, found: Generation
) -> None:
    alone = babn.generate(model, TEXTS[1:2], tokenizer=tokenizer, **SETTINGS)
    assert torch.equal(found[1].new_tokens, alone.new_tokens)


def test_batches_are_joined_in_their_order(model: Any, tokenizer: Any) -> None:
    both = [dict(tokenizer([text], return_tensors="pt")) for text in TEXTS[:2]]
    for each in both:
        each.pop("token_type_ids", None)
        each["labels"] = torch.tensor([0])
    joined = babn.generate(model, iter(both), **SETTINGS)
    assert len(joined) == 2
    first = babn.generate(model, both[0]["input_ids"], **SETTINGS)
    assert torch.equal(joined.new_tokens[:1], first.new_tokens)
    torch.testing.assert_close(joined[0].tokens.entropy, first.tokens.entropy)
    ids = [(each["input_ids"],) for each in both]
    assert torch.equal(babn.generate(model, ids, **SETTINGS).sequences, joined.sequences)


def test_encoder_decoders_take_batches() -> None:
    model = CASES["bart"].converted()
    ids = torch.randint(3, 99, (4, 6), generator=torch.Generator().manual_seed(3))
    settings = {"samples": 2, "max_new_tokens": 4, "min_new_tokens": 4, "progress": False}
    whole = babn.generate(model, ids, **settings)
    parts = babn.generate(model, [{"input_ids": ids[:3]}, {"input_ids": ids[3:, :4]}], **settings)
    assert len(parts) == 4 and parts.prompt_length == whole.prompt_length
    assert torch.equal(parts[:3].sequences, whole[:3].sequences)


def test_parts_of_a_generation(found: Generation) -> None:
    assert len(found) == 5 and len(found[1:3]) == 2
    assert torch.equal(found[-1].tokens.log_probs, found.tokens.log_probs[:, 4:])
    assert torch.equal(found[[3, 0]].texts.sequences, found.texts.sequences[:, [3, 0]])
    with pytest.raises(IndexError, match="index 5 is out of range for 5 examples"):
        found[5]
    assert found.to("cpu").sequences.device.type == "cpu"
    assert repr(found).startswith("Generation(2 samples, 5 prompts, up to 3 new tokens, mean ent")
    assert "\n" not in repr(found)


def test_generations_are_joined(found: Generation, model: Any, tokenizer: Any) -> None:
    joined = Generation.cat([found[:2], found[2:]])
    assert torch.equal(joined.sequences, found.sequences)
    assert torch.equal(joined.texts.log_probs, found.texts.log_probs)
    settings = {**SETTINGS, "texts": False}
    without = babn.generate(model, TEXTS[:1], tokenizer=tokenizer, **settings)
    assert without.texts is None and len(Generation.cat([without, without])) == 2
    with pytest.raises(SamplesError, match="cannot be joined"):
        Generation.cat([found, without])


def test_generations_are_saved_and_loaded(found: Generation, tmp_path: Path) -> None:
    found.save(tmp_path / "found.safetensors")
    again = Generation.load(tmp_path / "found.safetensors")
    assert again.prompt_length == found.prompt_length
    assert torch.equal(again.sequences, found.sequences)
    assert torch.equal(again.tokens.entropy, found.tokens.entropy)
    assert torch.equal(again.texts.seen, found.texts.seen)
    babn.Prediction(torch.randn(2, 3, 4)).save(tmp_path / "other.safetensors")
    with pytest.raises(FormatError, match="holds no generation"):
        Generation.load(tmp_path / "other.safetensors")


def test_a_data_frame_has_a_row_for_each_prompt(found: Generation, tokenizer: Any) -> None:
    frame = found.to_pandas(tokenizer)
    assert frame["text"].tolist() == [
        tokenizer.decode(row, skip_special_tokens=True) for row in found.new_tokens
    ]
    assert frame["tokens"].tolist() == [3] * 5
    expected = found.tokens.sequence_log_prob.tolist()
    assert frame["log_prob"].tolist() == pytest.approx(expected)
    assert frame["agreement"].between(0, 1).all() and "text" not in found.to_pandas()


def test_texts_need_a_tokenizer(model: Any) -> None:
    with pytest.raises(ConfigError, match="tokenizer=None"):
        babn.generate(model, TEXTS)
    with pytest.raises(SamplesError, match="no batches"):
        babn.generate(model, [])
