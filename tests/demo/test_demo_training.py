"""The demo's models, batches and training loop."""

from pathlib import Path

import pytest
import torch

import babn
from babn.data.intents import Labelled
from babn.demo import models
from babn.demo.batches import bucketed, make_batches
from babn.demo.small import small_encoder
from babn.demo.training import Recipe, Step, split_parameters, train
from babn.text.words import word_tokenizer
from babn_paper.tasks import installed

TEXTS = ("wake me at six", "wake me early", "play a song", "play some music at six") * 4
DATA = Labelled(TEXTS, (0, 0, 1, 1) * 4)
RECIPE = Recipe(epochs=8, encoder_rate=3e-3, classifier_rate=3e-3, belief_rate=3e-3, batch_size=4)
CPU = torch.device("cpu")


def trained(seed: int) -> tuple[list[Step], torch.nn.Module]:
    """What training reports, and the trained model."""
    base, tokenizer = models.load(models.find_source("small"), TEXTS, 2, seed)
    batches = make_batches(tokenizer, DATA, RECIPE.batch_size, RECIPE.epochs, seed, CPU)
    model = babn.convert(base, babn.BeliefConfig.pairs(max_length=64, kl_weight=0.02), batches[0])
    steps: list[Step] = []
    seconds = train(model, batches, RECIPE, seed, steps.append)
    assert len(seconds) == len(steps) == len(batches) == 32
    return steps, model


def test_training_learns_and_is_repeatable() -> None:
    first, model = trained(0)
    second, _ = trained(0)
    assert [step.loss for step in first] == [step.loss for step in second]
    assert first[-1].loss < first[0].loss / 2
    assert all(step.kl > 0 for step in first)
    assert babn.get_kl_weight(model) == pytest.approx(0.02)


def test_every_parameter_is_in_one_part() -> None:
    base, _ = models.load(models.find_source("small"), TEXTS, 2, 0)
    own = sum(p.numel() for p in base.parameters())
    model = babn.convert(
        base,
        babn.BeliefConfig.pairs(max_length=64),
        {"input_ids": torch.ones(1, 3).long(), "attention_mask": torch.ones(1, 3).long()},
    )
    parts = {name: sum(p.numel() for p in part) for name, part in split_parameters(model).items()}
    assert parts["classifier"] == 64 * 2 + 2
    assert parts["encoder"] + parts["classifier"] == own
    assert sum(parts.values()) == sum(p.numel() for p in model.parameters())


def test_batches_hold_every_text_once_and_similar_lengths() -> None:
    lengths = torch.randint(3, 30, (101,)).tolist()
    batches = bucketed(lengths, 8, torch.Generator().manual_seed(0))
    assert sorted(row for batch in batches for row in batch) == list(range(101))
    spread = [max(lengths[i] for i in b) - min(lengths[i] for i in b) for b in batches]
    assert sum(spread) / len(spread) < 8


def test_minilm_is_found_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "pretend_minilm"
    (package / "model").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(installed, "MINILM_PACKAGE", "pretend_minilm")
    assert models.find_source("auto").folder == package / "model"


def test_without_minilm_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "MINILM_PACKAGE", "no_such_package")
    source = models.find_source("auto")
    assert source.folder is None
    assert installed.MINILM_COMMAND in source.remark
    assert not models.find_source("small").remark


def test_folder_of_an_encoder_is_loaded(tmp_path: Path) -> None:
    tokenizer = word_tokenizer(TEXTS)
    encoder = small_encoder(len(tokenizer))
    encoder.save_pretrained(tmp_path)
    with pytest.raises(models.ModelError, match="holds no tokenizer"):
        models.load(models.find_source(str(tmp_path)), TEXTS, 2, 0)
    tokenizer.save_pretrained(tmp_path)
    model, loaded = models.load(models.find_source(str(tmp_path)), TEXTS, 2, 0)
    assert loaded("wake me")["input_ids"] == tokenizer("wake me")["input_ids"]
    expected, found = encoder.state_dict(), model.encoder.state_dict()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_unknown_words_share_one_token() -> None:
    tokenizer = word_tokenizer(TEXTS)
    ids = tokenizer("wake the zebra")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == ["[CLS]", "wake", "[UNK]", "[UNK]", "[SEP]"]
