"""Reading questions and images, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from babn.errors import DataError
from babn_paper.tasks.vqa import DAQUAR, EASY, VQA2
from babn_paper.tasks.vqa2 import read_answers
from babn_paper.tasks.vqa_features import FeatureFiles
from babn_paper.tasks.vqa_sources import COLOURS, generated
from babn_paper.tasks.vqa_text import question_words
from vqa_cases import (
    random_image,
    write_daquar,
    write_easy,
    write_easy_package,
    write_vqa2,
)


def test_easy_vqa_from_tables(tmp_path: Path) -> None:
    folder = write_easy(tmp_path / "easy_vqa")
    train, dev = (EASY.read(str(tmp_path), part) for part in ("train", "dev"))
    test = EASY.read(str(folder), "test")

    assert (len(train.examples), len(dev.examples), len(test.examples)) == (76, 4, 80)
    assert not {e.image for e in train.examples} & {e.image for e in dev.examples}
    assert {e.kind for e in test.examples} == {"color", "yes/no"}
    picture = test.images.picture(3)
    assert picture is not None and np.array_equal(picture, random_image(3))
    assert test.examples[6].image == 3 and test.examples[6].scores == {"blue": 1.0}


def test_easy_vqa_in_the_layout_of_its_package(tmp_path: Path) -> None:
    found = EASY.read(str(write_easy_package(tmp_path)), "test")
    picture = found.images.picture(1)

    assert [e.kind for e in found.examples] == ["shape", "yes/no"]
    assert picture is not None and np.array_equal(picture, random_image(1))


def test_daquar_from_a_tar_file(tmp_path: Path) -> None:
    found = DAQUAR.read(str(write_daquar(tmp_path)), "test")
    picture = found.images.picture(0)

    assert [e.best for e in found.examples] == ["book", "book, lamp", "book, lamp", "2", "book"]
    assert [e.kind for e in found.examples][1:4] == ["several", "several", "number"]
    assert picture is not None and picture.shape == (96, 128, 3)
    assert DAQUAR.answer_list(str(tmp_path), found) == ["book", "book, lamp"]


def test_vqa2_from_the_official_files(tmp_path: Path) -> None:
    folder = write_vqa2(tmp_path)
    train, test = (VQA2.read(str(folder), part) for part in ("train", "test"))

    assert train.examples[0].scores == pytest.approx({"2": 1.0})  # "two" is the same answer
    assert train.examples[1].scores == pytest.approx({"yes": 1.0, "no": 0.9})
    types = [example.question_type for example in train.examples[:4]]
    assert types == ["how many", "is it", "is the", "how many"]
    assert "train2014" in train.origin and "val2014" in test.origin
    assert VQA2.answer_list(str(folder), train) == ["2", "yes"]
    assert not VQA2.has(str(folder), "dev")
    batch = train.images.lookup(torch.tensor([2, 0]), 100).batch(torch.tensor([0, 1]))
    assert batch["regions"].shape == (2, 12, 2048)
    assert batch["region_mask"].sum(1).tolist() == [12, 10]
    expected = np.random.default_rng(0).random((2048, 10), dtype=np.float32).T
    np.testing.assert_array_equal(batch["regions"][1, :10], expected)
    assert batch["regions"][1, 10:].abs().max() == 0
    (folder / "answer_dict.json").write_text(json.dumps([{"no": 1, "yes": 0}, {}]))
    assert VQA2.answer_list(str(folder), train) == ["yes", "no"]


def test_vqa2_from_lines(tmp_path: Path) -> None:
    folder = write_vqa2(tmp_path)
    row = {"image_id": 1, "question": "Is it?", "answers": ["yes"] * 10, "answer": "yes"}
    (folder / "val.jsonl").write_text(json.dumps(row | {"answer_type": "yes/no"}) + "\n")
    (example,) = VQA2.read(str(folder), "test").examples
    assert (example.best, example.question_type) == ("yes", "")
    row |= {"answer_type": "yes/no", "question_type": "is it"}
    (folder / "val.jsonl").write_text(json.dumps(row) + "\n")
    assert VQA2.read(str(folder), "test").examples[0].question_type == "is it"


def test_missing_and_damaged_files_are_refused_before_training(tmp_path: Path) -> None:
    folder = write_vqa2(tmp_path / "vqa2")
    name = "COCO_train2014_000000000001.jpg.npz"
    path = folder / "features" / "train2014" / name
    whole = path.read_bytes()
    path.write_bytes(b"broken")
    with pytest.raises(DataError, match=f"{name} is damaged"):
        VQA2.read(str(folder), "train")
    path.unlink()
    with pytest.raises(DataError, match="lacks the features of 1 of 3"):
        VQA2.read(str(folder), "train")
    path.write_bytes(whole)
    (folder / "v2_mscoco_train2014_annotations.json").write_text("{}")
    with pytest.raises(DataError, match="is not a file of annotations"):
        VQA2.read(str(folder), "train")
    (folder / "answer_dict.json").write_text("7")
    with pytest.raises(DataError, match="not a list of answers"):
        read_answers(str(folder))


def test_features_that_break_later_count_as_zeros(tmp_path: Path) -> None:
    folder = write_vqa2(tmp_path)
    part = VQA2.read(str(folder), "train")
    assert isinstance(part.images, FeatureFiles)
    next((folder / "features" / "train2014").glob("*1.jpg.npz")).write_bytes(b"")
    with pytest.warns(UserWarning, match="count as zeros"):
        found = part.images.read(1)
    assert found.shape == (1, 2048) and not found.any()


def test_images_are_checked(tmp_path: Path) -> None:
    folder = write_easy_package(tmp_path / "easy")
    (folder / "train" / "images" / "1.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"1 cannot be read"):
        EASY.read(str(folder), "train")
    (folder / "train" / "images" / "1.png").unlink()
    with pytest.raises(DataError, match="lacks 1 of 2 images, such as '1'"):
        EASY.read(str(folder), "train")
    other = write_easy(tmp_path / "other")
    np.savez(other / "test_images.npz", ids=np.arange(2), images=np.zeros((2, 4, 4)))
    with pytest.raises(DataError, match="float64"):
        EASY.read(str(other), "test")
    (other / "train_images.npz").unlink()
    with pytest.raises(DataError, match=r"no train_images\.npz"):
        EASY.read(str(other), "train")
    pixels = np.zeros((1, 4, 4, 3), dtype=np.uint8)
    np.savez(other / "train_images.npz", ids=np.array([0]), images=pixels)
    with pytest.raises(DataError, match="refers to image '1'"):
        EASY.read(str(other), "train")


@pytest.mark.parametrize("part", ["noisy=x", "noisy=-1", "noisy=inf", "validation"])
def test_unknown_parts_are_refused(part: str) -> None:
    with pytest.raises(DataError, match=part):
        EASY.read("generated", part)


def test_made_up_shapes_are_what_the_questions_say() -> None:
    part = generated("test")
    assert part.examples == generated("test").examples
    for example in part.examples[:100]:
        picture = part.images.picture(example.image)
        assert picture is not None
        colours = {name for name, value in COLOURS.items() if (picture == value).all(-1).sum() > 25}
        assert len(colours) == 1
        if example.kind == "color":
            assert example.best in colours
    answers = [e.best for e in part.examples if e.kind == "yes/no"]
    assert 0.35 < answers.count("yes") / len(answers) < 0.8


def test_questions_are_read_as_mcan_does() -> None:
    assert question_words("What's the dog's t-shirt/hat?") == "whats the dogs t shirt hat"
    assert question_words("???") == "[UNK]"
