"""Tiny data sets of questions about images, written as people would have them."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

from babn_paper.experiments.experiment import Experiment

TINY: dict[str, Any] = {
    "task": "easy-vqa",
    "model": "small",
    "data": "generated",
    "steps": 4,
    "batch_size": 8,
    "learning_rate": 1e-3,
    "samples": 3,
}


def tiny(**fields: Any) -> Experiment:
    return Experiment.from_dict(TINY | fields)


def random_image(seed: int, height: int = 64, width: int = 64) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def png(image: np.ndarray) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


def write_easy(folder: Path, images: int = 40) -> Path:
    """Both splits as a table and an array."""
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "test"):
        lines = ["image\tquestion\tanswer"]
        for i in range(images):
            lines.append(f"{i}\twhat color is the shape?\t{('red', 'blue')[i % 2]}")
            lines.append(f"{i}\tis there a circle?\t{('yes', 'no')[i % 2]}")
        (folder / f"{split}_questions.tsv").write_text("\n".join(lines) + "\n")
        pixels = np.stack([random_image(i) for i in range(images)])
        np.savez(folder / f"{split}_images.npz", ids=np.arange(images), images=pixels)
    return folder


def write_easy_package(folder: Path) -> Path:
    """The layout of the PyPI package."""
    for split in ("train", "test"):
        (folder / split / "images").mkdir(parents=True)
        rows = [["what shape is it?", "circle", 0], ["is it red?", "no", 1]]
        (folder / split / "questions.json").write_text(json.dumps(rows))
        for i in range(2):
            (folder / split / "images" / f"{i}.png").write_bytes(png(random_image(i)))
    return folder


def write_daquar(folder: Path, images: int = 3) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "test"):
        rows = [
            {"image": f"image{i % images}", "question": f"what is on the desk {i}", "answer": a}
            for i, a in enumerate(["book", "lamp, book", "book, lamp", "2", "book"])
        ]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    with tarfile.open(folder / "images_small.tar", "w") as archive:
        for i in range(images):
            content = png(random_image(i, 30, 40))
            info = tarfile.TarInfo(f"image{i}.png")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return folder


def write_vqa2(folder: Path, questions: int = 24, images: int = 3) -> Path:
    """The official files, and features whose number of regions differs."""
    for split in ("train2014", "val2014"):
        features = folder / "features" / split
        features.mkdir(parents=True)
        asked, answered = [], []
        for i in range(questions):
            given = ["yes"] * 7 + ["no"] * 3 if i % 2 else ["two"] * 2 + ["2"] * 8
            asked.append({"question_id": i, "image_id": i % images, "question": "Is it?"})
            answered.append(
                {
                    "question_id": i,
                    "image_id": i % images,
                    "answers": [{"answer": a, "answer_id": k} for k, a in enumerate(given)],
                    "multiple_choice_answer": given[0] if i % 2 else "2",
                    "answer_type": "yes/no" if i % 2 else "number",
                    "question_type": ("how many", "is it", "is the")[i % 4 % 3],
                }
            )
        (folder / f"v2_OpenEnded_mscoco_{split}_questions.json").write_text(
            json.dumps({"questions": asked})
        )
        (folder / f"v2_mscoco_{split}_annotations.json").write_text(
            json.dumps({"annotations": answered})
        )
        for i in range(images):
            x = np.random.default_rng(i).random((2048, 10 + i), dtype=np.float32)
            name = f"COCO_{split}_{i:012d}.jpg.npz"
            np.savez(features / name, x=x, bbox=np.tile([0.0, 0, 5, 5], (10 + i, 1)))
    return folder
