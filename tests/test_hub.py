"""Sharing on the hub, with a folder in the place of the hub."""

import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
import transformers
import yaml

import babn
from babn.errors import ConfigError, FormatError
from babn.text import word_tokenizer
from babn.viewer.texts import open_model

NAME = "me/reviews"
INPUTS = {"input_ids": torch.tensor([[2, 3, 4, 5]])}


def tokenizer() -> Any:
    return word_tokenizer(("good soup", "bad soup"))


def classifier() -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=16,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
    )
    return transformers.BertForSequenceClassification(config)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that uploads go to and downloads come from."""
    place = tmp_path / "hub"

    def create_repo(self: Any, repo_id: str, **settings: Any) -> str:
        (place / repo_id).mkdir(parents=True, exist_ok=settings["exist_ok"])
        return f"https://hub/{repo_id}"

    def upload_folder(self: Any, *, repo_id: str, folder_path: str, **settings: Any) -> None:
        shutil.copytree(folder_path, place / repo_id, dirs_exist_ok=True)

    def snapshot_download(repo_id: str, *, allow_patterns: list[str], **settings: Any) -> str:
        if not (place / repo_id).is_dir():
            raise OSError(f"404: {repo_id}")
        fetched = tmp_path / "fetched" / repo_id
        fetched.mkdir(parents=True, exist_ok=True)
        for pattern in allow_patterns:
            for file in (place / repo_id).glob(pattern):
                shutil.copy(file, fetched)
        return str(fetched)

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", create_repo)
    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", upload_folder)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.chdir(tmp_path)
    return place


@pytest.fixture
def model() -> Any:
    found = babn.convert(classifier())
    babn.set_noise_level(found, 1.5)
    babn.set_temperature(found, 1.25)
    return found


def evaluations() -> list[babn.Evaluation]:
    torch.manual_seed(0)
    labels = torch.randint(2, (40,))
    return [
        babn.Evaluation.of_logits(name, torch.randn(40, 2), labels, details={"part": part})
        for name in ("softmax", "BABN")
        for part in ("dev", "test")
    ]


def test_a_shared_model_is_loaded_by_its_name(hub: Path, model: Any) -> None:
    address = babn.push_to_hub(
        model, NAME, tokenizer=tokenizer(), evaluations=evaluations(), part="dev"
    )
    assert address == f"https://hub/{NAME}"
    loaded = babn.load(NAME)
    assert babn.get_noise_level(loaded) == 1.5
    torch.testing.assert_close(loaded(**INPUTS).logits, model.eval()(**INPUTS).logits)
    viewed, read = open_model(NAME)
    assert type(viewed) is type(model) and len(read) == len(tokenizer())
    assert not (hub.parent / "fetched" / NAME / "README.md").exists()  # not asked for


def test_the_card_has_the_users_numbers_and_loads_the_model(hub: Path, model: Any) -> None:
    made = evaluations()
    babn.push_to_hub(model, NAME, evaluations=made, part="dev", license="mit", language="en")
    _, header, text = (hub / NAME / "README.md").read_text().split("---\n", 2)
    about = yaml.safe_load(header)
    assert about["library_name"] == "babn" and about["license"] == "mit" and "babn" in about["tags"]
    table = babn.compare([each for each in made if each.details["part"] == "dev"]).table()
    assert table.markdown().strip() in text
    assert "noise level 1.5, temperature 1.25" in text and "40 examples" in text
    assert f'babn.load("{NAME}")' in text


@pytest.mark.thorough
def test_evaluations_come_from_folders_too(hub: Path, model: Any, tmp_path: Path) -> None:
    for each in evaluations():
        each.save(tmp_path / "answers" / each.details["part"] / each.method)
    card = babn.model_card(model, NAME, evaluations=tmp_path / "answers", part="test")
    assert "| softmax" in card and "part test" in card
    assert "Not measured." in babn.model_card(model, NAME)


def test_a_shared_adapter_is_small_and_its_card_runs(hub: Path, model: Any) -> None:
    base = classifier()
    base.save_pretrained("me_base")
    tokenizer().save_pretrained("me_base")
    babn.revert(model)
    model = babn.convert(transformers.AutoModelForSequenceClassification.from_pretrained("me_base"))
    babn.push_to_hub(model, "me/small", adapter=True, base_model="me_base")
    files = {path.name for path in (hub / "me/small").iterdir()}
    assert files == {"README.md", "belief.json", "belief.safetensors"}
    card = (hub / "me/small" / "README.md").read_text()
    code = card.split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    exec(code.replace('["..."]', '["good"], progress=False'), names)
    assert names["prediction"].probs.shape == (1, 2)
    assert yaml.safe_load(card.split("---\n")[1]).get("base_model") is None  # a folder is no name


def test_names_that_lead_nowhere_are_refused(hub: Path, model: Any) -> None:
    with pytest.raises(FormatError, match=r"me/nothing does not exist as a folder.*404"):
        babn.load("me/nothing")
    with pytest.raises(FormatError, match="does not exist as a folder"):
        babn.load_adapter(classifier(), "me/nothing")
    with pytest.raises(ConfigError, match=r"repo_id='reviews'.*me/reviews"):
        babn.push_to_hub(model, "reviews")
    with pytest.raises(ConfigError, match=r"no save_pretrained.*adapter=True"):
        layer = torch.nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
        encoder = torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        babn.push_to_hub(babn.convert(encoder, example_inputs=torch.zeros(1, 3, 8)), NAME)
