"""Resources from a folder: what is missing is told, and nothing else is taken instead."""

import gzip
import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from resource_folders import WORDS, save_bert, write_all, write_nltk, write_vectors

from babn.errors import MissingExtraError
from babn_paper.attacks.local_resources import (
    LocalResources,
    MeanPooled,
    Nearest,
    fingerprint,
    load_masked_lm,
    read_embedding,
    read_vectors,
)
from babn_paper.attacks.plan import RECIPES
from babn_paper.attacks.resources import Provider, ResourceError
from babn_paper.attacks.textattack_attacker import import_textattack
from babn_paper.cli._tables import Request

pytestmark = pytest.mark.thorough


class Embedding:
    """What TextAttack's embedding does with its arguments."""

    def __init__(self, vectors: Any, to_index: Any, to_word: Any, nearest: Any) -> None:
        self.vectors, self.to_index, self.to_word = vectors, to_index, to_word
        self.nearest = nearest

    def neighbours(self, word: str, count: int) -> list[str]:
        return [self.to_word[i] for i in self.nearest[self.to_index[word]][1 : count + 1]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_vectors(tmp_path / "vectors.npz")
    write_nltk(tmp_path / "nltk_data")
    (tmp_path / "encoder").mkdir()
    (tmp_path / "encoder" / "config.json").write_text("{}")
    return tmp_path


def test_what_is_there_is_named_with_what_it_stands_for(folder: Path) -> None:
    used = LocalResources(folder).describe("textfooler")
    assert list(used) == ["vectors", "encoder", "nltk"]
    assert used["vectors"].name == "vectors.npz"
    assert used["vectors"].substituted
    assert not used["nltk"].substituted
    assert all(len(each.fingerprint) == 16 for each in used.values())


@pytest.mark.parametrize(
    ("recipe", "lost", "message"),
    [
        ("textfooler", "vectors.npz", r"no vectors.npz or neighbours.json.gz or .*counter-fitted"),
        ("textbugger", "encoder", r"no encoder, .*Universal Sentence Encoder"),
        ("bae", "", r"no masked_lm, .*bert-base-uncased"),
        ("textfooler", "nltk_data", r"no nltk_data, .*stop words"),
    ],
)
def test_what_is_missing_is_told(folder: Path, recipe: Any, lost: str, message: str) -> None:
    if lost:
        (folder / lost).rename(folder / "gone")
    with pytest.raises(ResourceError, match=message):
        LocalResources(folder).describe(recipe)


def test_a_missing_part_of_nltk_is_told(folder: Path) -> None:
    (folder / "nltk_data" / "corpora" / "stopwords" / "english").unlink()
    with pytest.raises(ResourceError, match="has no corpora/stopwords/english"):
        LocalResources(folder).describe("textfooler")


def test_names_and_places_can_be_given(folder: Path) -> None:
    (folder / "vectors.npz").rename(folder / "mine.npz")
    names = {"vectors": {"path": "mine.npz", "name": "the real ones", "original": True}}
    (folder / "resources.json").write_text(json.dumps(names))
    vectors = LocalResources(folder).describe("textfooler")["vectors"]
    assert (vectors.name, vectors.substituted) == ("the real ones", False)


@pytest.mark.parametrize(
    "content", ["[]", "{", '{"vectors": 3}', '{"word_vectors": {}}', '{"vectors": {"file": "a"}}']
)
def test_names_that_cannot_be_read_are_refused(folder: Path, content: str) -> None:
    (folder / "resources.json").write_text(content)
    with pytest.raises(ResourceError, match=r"resources.json (cannot be read|has)"):
        LocalResources(folder).describe("textfooler")


def test_a_folder_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="is not a folder"):
        LocalResources(tmp_path / "nowhere")


def test_downloads_are_the_originals() -> None:
    used = Provider().describe("bae")
    assert used["masked_lm"].name == "bert-base-uncased"
    assert not any(each.substituted for each in used.values())


def test_fingerprints_follow_names_and_content(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    first = fingerprint(tmp_path)
    (tmp_path / "a").write_text("2")
    second = fingerprint(tmp_path)
    (tmp_path / "a").rename(tmp_path / "b")
    assert len({first, second, fingerprint(tmp_path), fingerprint(tmp_path / "b")}) == 4


def test_vectors_of_bytes_are_scaled_to_length_one(tmp_path: Path) -> None:
    vectors = np.array([[100, 0], [0, -3], [0, 0]], np.int8)
    np.savez(tmp_path / "vectors.npz", words=np.array(["a", "b", "c"]), vectors=vectors)
    words, found = read_vectors(tmp_path / "vectors.npz")
    assert words == ["a", "b", "c"]
    np.testing.assert_allclose(found, [[1, 0], [0, -1], [0, 0]])


def test_neighbours_come_in_order_of_their_cosines(tmp_path: Path) -> None:
    angles = np.array([0.0, 0.3, 0.1, 2.0, 0.0])
    vectors = np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    assert Nearest(vectors)[0].tolist() == [0, 4, 2, 1, 3]
    assert Nearest(vectors)[4].tolist() == [4, 0, 2, 1, 3]


def test_only_as_many_neighbours_as_recipes_ask_for() -> None:
    vectors = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    order = np.argsort(-(vectors @ vectors[7]), kind="stable")[:51]
    assert Nearest(vectors)[7].tolist() == order.tolist()


@pytest.mark.parametrize("name", ["neighbours.json", "neighbours.json.gz"])
def test_a_table_gives_neighbours_without_distances(folder: Path, name: str) -> None:
    (folder / "vectors.npz").unlink()
    content = json.dumps({"good": ["great", "fine"], "great": ["good"], "odd": []}).encode()
    (folder / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    resources = LocalResources(folder)
    found = resources.embedding(Embedding)
    assert found.neighbours("good", 50) == ["great", "fine"]
    assert found.neighbours("good", 1) == ["great"]
    assert found.neighbours("fine", 50) == found.neighbours("odd", 50) == []
    index = found.to_index
    assert found.get_cos_sim(index["good"], index["fine"]) == 1
    assert found.get_cos_sim(index["fine"], index["good"]) == 1
    assert found.get_cos_sim(index["great"], index["fine"]) == 0
    assert "threshold on cosines" in resources.describe("textfooler")["vectors"].note


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("vectors.npz", b"not a zip file"),
        ("neighbours.json", b"{"),
        ("neighbours.json", b"[1]"),
        ("neighbours.json.gz", b"plain"),
    ],
)
def test_damaged_files_are_told(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ResourceError, match=name):
        read_embedding(tmp_path / name, Embedding)


def test_vectors_need_a_word_each(tmp_path: Path) -> None:
    np.savez(tmp_path / "vectors.npz", words=np.array(["a"]), vectors=np.ones((2, 3)))
    with pytest.raises(ResourceError, match=r"1 words and vectors of shape \(2, 3\)"):
        read_vectors(tmp_path / "vectors.npz")


def test_the_encoder_averages_over_tokens_whatever_the_padding(tmp_path: Path) -> None:
    from transformers import BertModel

    save_bert(BertModel, tmp_path)
    encode = MeanPooled(tmp_path)
    alone, longer = encode(["good film"]), encode(["good film", "a very good film indeed"])
    torch.testing.assert_close(alone[0], longer[0], atol=1e-5, rtol=0)
    assert torch.equal(encode(["good", "film", "good"])[0], encode(["good", "film", "good"])[2])
    batch = encode.tokenizer(["good film"], return_tensors="pt")
    with torch.no_grad():
        expected = encode.model(**batch).last_hidden_state.mean(1)
    torch.testing.assert_close(alone, expected, atol=1e-5, rtol=0)


def test_a_model_without_its_weights_is_refused(tmp_path: Path) -> None:
    from transformers import BertForMaskedLM, BertModel

    save_bert(BertModel, tmp_path / "body")
    with pytest.raises(ResourceError, match="has no weights for cls"):
        load_masked_lm(tmp_path / "body")
    save_bert(BertForMaskedLM, tmp_path / "whole")
    model, tokenizer = load_masked_lm(tmp_path / "whole")
    assert tokenizer.mask_token == "[MASK]"
    assert not model.training
    with pytest.raises(ResourceError, match="cannot be loaded"):
        load_masked_lm(tmp_path / "nothing")
    assert len(WORDS) == len(set(WORDS))


def test_textattack_that_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "textattack" else find(name)
    )
    with pytest.raises(MissingExtraError, match=r"pip install --no-deps textattack==0\.3\.11"):
        import_textattack()


def test_tiny_resources_are_whole_and_say_what_they_are(tmp_path: Path) -> None:
    folder = write_all(tmp_path / "tiny")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    found = LocalResources(write_all(folder))
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    for recipe in RECIPES:
        used = found.describe(recipe)
        assert all(resource.substituted for resource in used.values())
    assert used["nltk"].name == "a tagger to which every word is a noun"
    assert found.nltk_data.is_dir()
    encoded = found.encoder()(["the plot was thin", "a joy"])
    assert np.isfinite(np.asarray(encoded)).all() and len(encoded) == 2
    model, tokenizer = found.masked_lm()
    assert tokenizer.mask_token_id < model.config.vocab_size


def test_a_quick_table_takes_tiny_resources_unless_others_are_given(tmp_path: Path) -> None:
    def settings_of(
        quick: bool, resources: str | None, examples: int = 1000
    ) -> tuple[int, str | None]:
        return Request(1, 1, {}, tmp_path, quick, False, examples, resources).attack_settings

    assert settings_of(False, None) == (1000, None)
    assert settings_of(True, "mine", 7) == (7, "mine")
    count, folder = settings_of(True, None)
    assert count < 10 and folder == str(tmp_path / "quick/attack_resources")
    assert settings_of(True, None, 2) == (2, folder)
