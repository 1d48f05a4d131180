"""Everything that may be wrong with visual data at once: a run comes to its end all the same."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from babn.errors import DataError
from babn_paper.experiments.run import run
from babn_paper.visual.question import (
    QuestionSettings,
    answer_example,
    answer_file,
    load_run,
    read_questions,
)
from vqa_cases import png, random_image, tiny, write_vqa2

pytestmark = pytest.mark.thorough

FEW = QuestionSettings(samples=2)


def with_odd_questions(folder: Path) -> Path:
    """A question that is too long, one without words, and answers that nobody gave in training."""
    for split in ("train2014", "val2014"):
        path = folder / f"v2_OpenEnded_mscoco_{split}_questions.json"
        content = json.loads(path.read_text())
        content["questions"][0]["question"] = "Is it " + "very " * 40 + "red?"
        content["questions"][1]["question"] = "???"
        content["questions"][2]["question"] = "Zebras, giraffes?"
        path.write_text(json.dumps(content))
        path = folder / f"v2_mscoco_{split}_annotations.json"
        answered = json.loads(path.read_text())
        for i, each in enumerate(answered["annotations"][3]["answers"]):
            each["answer"] = f"{split} {i}"
        path.write_text(json.dumps(answered))
    return folder


@pytest.mark.slow
def test_a_run_survives_odd_questions_and_a_damaged_file(tmp_path: Path) -> None:
    folder = with_odd_questions(write_vqa2(tmp_path / "vqa2"))
    pictures = folder / "images" / "val2014"
    pictures.mkdir(parents=True)
    (pictures / "COCO_val2014_000000000001.png").write_bytes(png(random_image(1, 30, 40)))
    damaged = folder / "features" / "train2014" / "COCO_train2014_000000000001.jpg.npz"
    np.savez(damaged, x=np.full((2048, 11), np.nan, dtype=np.float32))

    with pytest.warns(UserWarning, match="count as zeros"):
        results = run(tiny(task="vqa2", method="belief", data=str(folder)), tmp_path / "run")
    assert list(results["measures"]) == ["test", "noisy"]
    for measures in (results["measures"]["test"]["mean"], results["measures"]["noisy"]["sampled"]):
        assert 0 <= measures["accuracy"] <= 1 and math.isfinite(measures["NLL"])
        types = {name: n for name, n in measures.items() if name.startswith("questions [")}
        assert list(types.values()) == [12, 6, 6]
        assert list(types) == [f"questions [{name}]" for name in ("how many", "is it", "is the")]

    task_model = load_run(tmp_path / "run")
    npz = folder / "features" / "val2014" / "COCO_val2014_000000000002.jpg.npz"
    answer = answer_file(task_model, npz, "Is it?", FEW)
    assert answer.picture is None and answer.boxes is not None and len(answer.boxes) == 12
    answer = answer_example(task_model, read_questions(task_model), 4, FEW)  # about image 1
    assert answer.picture is not None and answer.picture.shape == (30, 40, 3)
    np.savez(tmp_path / "small.npz", x=np.ones((3, 5)))
    with pytest.raises(DataError, match="regions by 2048"):
        answer_file(task_model, tmp_path / "small.npz", "Is it?", FEW)
    with pytest.raises(DataError, match="holds no features"):
        answer_file(task_model, tmp_path / "none.npz", "Is it?", FEW)
