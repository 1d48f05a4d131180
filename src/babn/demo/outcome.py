"""Settings, predictions, measures and results of the demo, and the folder that it writes."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

import babn
from babn import metrics
from babn.data.intents import Labelled
from babn.demo.classifier import Source
from babn.evaluation.comparison import Difference
from babn.evaluation.html_pages import check_target
from babn.evaluation.html_report import AUTHOR, PAGE
from babn.training.fine_tuning import Recipe

BINS = 10
"""Bins of confidence, as in the paper."""

VIEW, NUMBERS = "view.html", "results.json"
TITLE = "How sure is attention?"


@dataclass(frozen=True)
class Settings:
    """The options of the demo.

    Attributes:
        seed: Seed of the order of the texts, the initial weights and the samples.
        quick: Whether to train the small model for a few seconds only.
    """

    seed: int = 0
    quick: bool = False


@dataclass(frozen=True)
class Texts:
    """The test texts.

    Attributes:
        clear: Texts with exactly one correct intent.
        outside: Out-of-scope texts, which have none of the intents.
        ambiguous: Texts that two intents fit.
    """

    clear: Labelled
    outside: tuple[str, ...]
    ambiguous: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.clear) + len(self.outside) + len(self.ambiguous)


class Predictions(NamedTuple):
    """A model's predictions for the three kinds of text."""

    clear: babn.Prediction
    outside: babn.Prediction
    ambiguous: babn.Prediction


Scores = dict[str, float | None]
"""Accuracy, NLL and ECE on clear texts; AUROC of detecting out-of-scope and ambiguous texts by
entropy, and by mutual information, which is `None` without samples."""


def predictions(
    model: nn.Module,
    tokenizer: Any,
    texts: Texts,
    samples: int,
    seed: int,
    report: Callable[[int], None],
    dropout: bool = False,
) -> Predictions:
    """Predictions of a converted model for all texts; `report` receives how many are finished."""
    settings = {"tokenizer": tokenizer, "dropout": dropout, "progress": False}
    found = []
    for number, kind in enumerate((texts.clear.texts, texts.outside, texts.ambiguous)):
        found.append(babn.predict(model, kind, samples, seed + number, **settings).to("cpu"))
        report(len(kind))
    return Predictions(*found)


def score(predictions: Predictions, texts: Texts) -> Scores:
    """The measures of one model."""
    clear, labels = predictions.clear, torch.tensor(texts.clear.labels)
    found: Scores = {
        "accuracy": metrics.accuracy(clear, labels),
        "nll": metrics.nll(clear, labels),
        "ece": metrics.ece(clear, labels),
    }
    sampled = len(clear.sample_logits) > 1
    for name, kind in (("outside", predictions.outside), ("ambiguous", predictions.ambiguous)):
        found[f"{name}_entropy"] = metrics.auroc(clear.entropy, kind.entropy)
        information = clear.mutual_information, kind.mutual_information
        found[f"{name}_information"] = metrics.auroc(*information) if sampled else None
    return found


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Attributes:
        name: The model, and how it predicts.
        predictions: Its predictions for the test texts.
        scores: Their measures.
        level: The noise level found on the development texts; `None` where there is none.
    """

    name: str
    predictions: Predictions
    scores: Scores
    level: float | None = None


@dataclass(frozen=True)
class Example:
    """One sentence and its prediction.

    Attributes:
        kind: Whether the prediction is sure or unsure.
        text: The sentence.
        intent: The predicted intent.
        prediction: Samples of the prediction, of shape sample by 1 by intent.
    """

    kind: Literal["sure", "unsure"]
    text: str
    intent: str
    prediction: babn.Prediction

    def numbers(self) -> dict[str, float]:
        """The uncertainty of the prediction."""
        low, high = self.prediction.interval(0.9)[0].tolist()
        return {
            "probability": float(self.prediction.probs[0].max()),
            "low": low,
            "high": high,
            "disagreement": float(self.prediction.disagreement[0]),
            "mutual_information": float(self.prediction.mutual_information[0]),
            "entropy": float(self.prediction.entropy[0]),
        }


@dataclass(frozen=True)
class Novelty:
    """Detection of out-of-scope texts by their distance from the training texts.

    Attributes:
        auroc: AUROC of clear and out-of-scope texts.
        clear: Share of clear texts with a p-value of at most 5 %.
        outside: Share of out-of-scope texts with such a p-value.
    """

    auroc: float
    clear: float
    outside: float


@dataclass(frozen=True)
class Outcome:
    """The results that the table, the pages and the results file show.

    Attributes:
        settings: The user's options.
        source: Where the model comes from.
        recipe: The training recipe.
        texts: The test texts.
        rows: The rows of the table, softmax first.
        differences: For each row of BABN its differences from softmax, by measure.
        examples: A sentence that BABN is sure of, and one that it is unsure of.
        view: The page of BABN's attention to these sentences.
        novelty: Detection of out-of-scope texts by their distance from the training texts.
    """

    settings: Settings
    source: Source
    recipe: Recipe
    texts: Texts
    rows: list[Row]
    differences: dict[str, dict[str, Difference]]
    examples: list[Example]
    view: babn.View
    novelty: Novelty


def evaluations(rows: list[Row], texts: Texts) -> list[babn.Evaluation]:
    """The predictions of each row for clear and out-of-scope texts."""
    labels = torch.tensor(texts.clear.labels)
    return [
        babn.Evaluation(row.name, row.predictions.clear, labels, outside=row.predictions.outside)
        for row in rows
    ]


def prepare(folder: Path, force: bool) -> None:
    """Creates the folder; raises if it holds files that neither demo nor report wrote.

    Called before anything is trained, so that the error comes early.
    """
    check_target(folder, PAGE, AUTHOR, force)
    folder.mkdir(parents=True, exist_ok=True)


def write(folder: Path, outcome: Outcome, versions: dict[str, str]) -> None:
    """Writes the report, the page of attention and the numbers."""
    found = evaluations(outcome.rows, outcome.texts)
    babn.report(found, folder, title=TITLE, bins=BINS, force=True)
    outcome.view.save(folder / VIEW)
    text = json.dumps(numbers(outcome, versions), indent=2, ensure_ascii=False)
    (folder / NUMBERS).write_text(text + "\n", encoding="utf-8")


def numbers(outcome: Outcome, versions: dict[str, str]) -> dict[str, Any]:
    """All results and settings as plain values."""
    return {
        "versions": versions,
        "settings": asdict(outcome.settings),
        "model": outcome.source.name,
        "recipe": asdict(outcome.recipe),
        "texts": {
            "clear": len(outcome.texts.clear),
            "out_of_scope": len(outcome.texts.outside),
            "ambiguous": len(outcome.texts.ambiguous),
        },
        "bins": BINS,
        "rows": [{"name": row.name, "level": row.level, **row.scores} for row in outcome.rows],
        "differences": {
            row: {name: {**asdict(each), "verdict": each.verdict} for name, each in found.items()}
            for row, found in outcome.differences.items()
        },
        "examples": [
            {"kind": each.kind, "text": each.text, "intent": each.intent, **each.numbers()}
            for each in outcome.examples
        ],
        "novelty": asdict(outcome.novelty),
    }
