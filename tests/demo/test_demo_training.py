"""The demo's models, batches and training."""

from pathlib import Path

import pytest
import torch

import babn
from babn import text
from babn.data.intents import Labelled
from babn.demo import classifier
from babn.text import word_tokenizer
from babn.training.fine_tuning import Recipe, fine_tune, text_data
from babn_paper.experiments.training_state import bucketed

TEXTS = ("wake me at six", "wake me early", "play a song", "play some music at six") * 4
DATA = Labelled(TEXTS, (0, 0, 1, 1) * 4)
RECIPE = Recipe(epochs=8, rate=3e-3, batch_size=4)
Logs = list[dict[str, float]]


def trained(seed: int, config: babn.MethodConfig | None) -> tuple[Logs, torch.nn.Module]:
    """What training reports, and the trained model, converted if there is a configuration."""
    model, tokenizer = classifier.load(classifier.find_source("small"), TEXTS, 2, seed)
    if config is not None:
        babn.convert(model, config, dict(tokenizer(list(TEXTS), padding=True, return_tensors="pt")))
    logs: Logs = []
    rows, collate = text_data(tokenizer, DATA.texts, DATA.labels)
    fine_tune(model, rows, collate, RECIPE, seed, logs.append)
    assert len(logs) == 32
    return logs, model.cpu()


@pytest.mark.thorough
def test_training_learns_and_is_repeatable() -> None:
    first, model = trained(0, babn.BeliefConfig(kl_weight=0.02))
    second, _ = trained(0, babn.BeliefConfig(kl_weight=0.02))
    assert [logs["loss"] for logs in first] == [logs["loss"] for logs in second]
    assert first[-1]["loss"] < first[0]["loss"] / 2
    assert all(logs["kl"] > 0 for logs in first)
    assert babn.get_kl_weight(model) == pytest.approx(0.02)


def test_softmax_is_trained_without_a_kl() -> None:
    logs, model = trained(0, None)
    assert logs[-1]["loss"] < logs[0]["loss"] / 2
    assert "kl" not in logs[0]
    assert not any("babn" in name for name, _ in model.named_parameters())


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
    monkeypatch.setattr(text, "MINILM_PACKAGE", "pretend_minilm")
    assert classifier.find_source("auto").folder == package / "model"


def test_without_minilm_the_remark_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "MINILM_PACKAGE", "no_such_package")
    source = classifier.find_source("auto")
    assert source.folder is None
    assert text.MINILM_COMMAND in source.remark
    assert not classifier.find_source("small").remark
    with pytest.raises(classifier.ModelError, match="Give 'auto' or 'small'"):
        classifier.find_source("large")


def test_folder_of_an_encoder_is_loaded(tmp_path: Path) -> None:
    tokenizer = word_tokenizer(TEXTS)
    encoder = classifier.small_encoder(len(tokenizer))
    encoder.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model, loaded = classifier.load(classifier.Source("", tmp_path), TEXTS, 2, 0)
    assert loaded("wake me")["input_ids"] == tokenizer("wake me")["input_ids"]
    expected, found = encoder.state_dict(), model.encoder.state_dict()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_unknown_words_share_one_token() -> None:
    tokenizer = word_tokenizer(TEXTS)
    ids = tokenizer("wake the zebra")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == ["[CLS]", "wake", "[UNK]", "[UNK]", "[SEP]"]
