"""Small files of made-up data, one for each kind of task."""

import json
from pathlib import Path

from PIL import Image

WORDS = {
    "love it": ("lovely", "tasty"),
    "leave, it": ("stale", "grim"),
    "so-so": ("plain", "usual"),
}
FAST = ["batch_size=8", "learning_rate=1e-3", "max_length=16", "samples=3", "steps=4"]


def reviews(folder: Path) -> Path:
    """Reviews of three classes."""
    rows = [
        f'"the {noun} was {word}, {i}","{label}"'
        for i, noun in enumerate(("soup", "room", "bed", "tea") * 3)
        for label, words in WORDS.items()
        for word in words
    ]
    path = folder / "reviews.csv"
    path.write_text("\n".join(["review,verdict", *rows]) + "\n")
    return path


def prices(folder: Path) -> Path:
    rows = [{"ad": f"flat {i} with {i % 5} rooms", "price": 1000.0 * (i % 5)} for i in range(30)]
    return objects(folder / "prices.jsonl", rows)


def quiz(folder: Path) -> Path:
    rows = [
        {"q": f"which is good, {i}", "options": options, "a": options.index("lovely")}
        for i, options in enumerate([["grim", "lovely"], ["lovely", "grim"]] * 15)
    ]
    return objects(folder / "quiz.jsonl", rows)


def translations(folder: Path) -> str:
    """Two aligned files."""
    pairs = [(f"die katze {i}", f"the cat {i}") for i in range(30)]
    for language, side in zip(("de", "en"), zip(*pairs, strict=True), strict=True):
        (folder / f"my.{language}").write_text("\n".join(side) + "\n")
    return f"{folder / 'my.de'},{folder / 'my.en'}"


def questions(folder: Path) -> Path:
    """Questions about images of one colour, which are in the subfolder `photos`."""
    (folder / "photos").mkdir()
    rows = []
    for i in range(12):
        colour = ("red", "green", "blue")[i % 3]
        Image.new("RGB", (20, 16), colour).save(folder / "photos" / f"p{i}.png")
        rows.append({"image": f"p{i}.png", "question": "which colour", "answer": colour})
        yes = "yes" if colour == "red" else "no"
        rows.append({"image": f"p{i}.png", "question": "is it red", "answer": yes})
    return objects(folder / "questions.jsonl", rows)


def objects(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
