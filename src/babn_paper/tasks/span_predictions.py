"""Predicted answers to questions on paragraphs, and their metrics.

Metrics are SQuAD's official scores, calibration, and detection of wrong answers.

A folder holds `answers.json`, which describes the format, and `answers.jsonl.gz` with one question
per line.
"""

import gzip
import json
import math
import re
import string
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from babn import metrics
from babn.errors import FormatError
from babn.files import parse_json, replace_file
from babn_paper.tasks.scores import BINS, confidence_ece, error_auroc, folds
from babn_paper.tasks.task import Predictions, description_of, write_description

TEMPERATURES = tuple(2 ** (eighth / 8) for eighth in range(-16, 25))
"""Temperatures from 1/4 to 8 that temperature scaling chooses from."""

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True)
class SpanPrediction:
    """The predicted answer to one question.

    Attributes:
        id: Identifier of the question.
        golds: The right answers; none if the paragraph does not answer the question.
        best: The distinct texts with the largest scores, in descending order; see
            `span_decoding`. A softmax over the scores has the probabilities of the texts.
        null: Score of no answer.
        samples: Most probable answer of each sample, empty for no answer; none for one sample.
        gold_scores: Log-probability of the best right span, or of no answer if that is right, at
            each of `TEMPERATURES`; none if no window contains a right span.
    """

    id: str
    golds: tuple[str, ...]
    best: tuple[tuple[str, float], ...]
    null: float
    samples: tuple[str, ...] = ()
    gold_scores: tuple[float, ...] = ()

    @classmethod
    def parse(cls, line: str) -> "SpanPrediction":
        """Parses a line of a file."""
        found = parse_json(line)
        best = tuple((text, score) for text, score in found.pop("best"))
        null = found.pop("null")
        name = found.pop("id")
        return cls(name, best=best, null=null, **{key: tuple(row) for key, row in found.items()})

    def text(self, unanswerable: bool) -> str:
        """Returns the most probable answer; empty for no answer."""
        if not self.best:
            return ""
        text, score = self.best[0]
        return "" if unanswerable and self.null > score else text


Questions = Sequence[SpanPrediction]
Values = Float[Tensor, "question"]


def normalized(text: str) -> str:
    """Lower-cases a text and removes punctuation, articles and superfluous white space."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


@dataclass(frozen=True)
class OfficialScores:
    """Scores of one answer, as in the official scripts evaluate-v1.1 and evaluate-v2.0.

    Attributes:
        unanswerable: Whether to follow version 2.0, in which an empty text means no answer, and
            right answers that are empty after normalisation are ignored.
    """

    unanswerable: bool

    def exact(self, text: str, golds: Sequence[str]) -> float:
        """Returns 1 if the normalised text is one of the right answers, otherwise 0."""
        return float(normalized(text) in {normalized(gold) for gold in self._golds(golds)})

    def f1(self, text: str, golds: Sequence[str]) -> float:
        """Returns the largest F1 score between the words of the text and of a right answer."""
        return max(self._overlap(text, gold) for gold in self._golds(golds))

    def _golds(self, golds: Sequence[str]) -> Sequence[str]:
        return [gold for gold in golds if normalized(gold)] or [""] if self.unanswerable else golds

    def _overlap(self, text: str, gold: str) -> float:
        words, right = normalized(text).split(), normalized(gold).split()
        if self.unanswerable and not (words and right):
            return float(words == right)
        same = (Counter(words) & Counter(right)).total()
        return 2 * same / (len(words) + len(right)) if same else 0.0


def best_threshold(
    scores: Float[Tensor, "question"],
    odds: Float[Tensor, "question"],
    answerable: Bool[Tensor, "question"],
) -> tuple[float, float]:
    r"""Returns the best mean score over all thresholds of the odds, and the threshold.

    As in the official script, the threshold is chosen on the questions that are scored. A question
    is predicted to be unanswerable if its odds exceed the threshold; `-inf` predicts this for all.

    Args:
        scores: Scores of the texts that are predicted for answerable questions.
        odds: Score of no answer minus that of the text.
        answerable: Whether each question has an answer.
    """
    order = odds.argsort(stable=True)
    gain = scores.double().where(answerable, -1.0)[order].cumsum(0)
    best, place = gain.max(0)
    silent = (~answerable).sum().item()
    if best <= 0:
        return silent / len(odds), -torch.inf
    return (silent + best.item()) / len(odds), odds[order[place]].item()


def measure(questions: Questions, unanswerable: bool) -> dict[str, float]:
    """Computes all metrics; NaN where one is undefined, as when every answer is right.

    Confidence is the probability of the answer among the best texts of its question, with no answer
    as a further candidate where questions may have none. Calibration is measured against `exact`,
    for SQuAD 2.0 against `exact (threshold 0)`.
    """
    texts = [each.text(unanswerable) for each in questions]
    official = OfficialScores(unanswerable)
    right = _scored(official.exact, texts, questions) == 1
    overlap = _scored(official.f1, texts, questions)
    scores = {"exact": right.double().mean().item(), "F1": overlap.mean().item()}
    if unanswerable:
        scores = _with_threshold(questions, official) | _at_zero(questions, scores, overlap)
    return (
        scores
        | _likelihood(questions)
        | _calibration(_candidates(questions, unanswerable), right)
        | _agreement(questions, texts, right)
    )


def _scored(
    score: Callable[[str, Sequence[str]], float], texts: Sequence[str], questions: Questions
) -> Values:
    pairs = zip(texts, questions, strict=True)
    return torch.tensor([score(text, each.golds) for text, each in pairs], dtype=torch.float64)


def _with_threshold(questions: Questions, official: OfficialScores) -> dict[str, float]:
    """Computes scores at the best threshold for these questions, as in the official script."""
    texts = [each.text(unanswerable=False) for each in questions]
    odds = [each.null - each.best[0][1] if each.best else math.inf for each in questions]
    answerable = torch.tensor([bool(each.golds) for each in questions])
    chances = torch.tensor(odds, dtype=torch.float64)
    return {
        name: best_threshold(_scored(score, texts, questions), chances, answerable)[0]
        for name, score in (("exact", official.exact), ("F1", official.f1))
    }


def _at_zero(questions: Questions, scores: dict[str, float], overlap: Values) -> dict[str, float]:
    """Computes scores without a threshold: no answer is predicted if it is most probable."""
    answerable = torch.tensor([bool(each.golds) for each in questions])
    kinds = {"HasAns F1": overlap[answerable], "NoAns F1": overlap[~answerable]}
    found = scores | {name: each.mean().item() for name, each in kinds.items()}
    return {f"{name} (threshold 0)": value for name, value in found.items()}


def _likelihood(questions: Questions) -> dict[str, float]:
    """Computes the NLL of right spans in windows, without and with temperature scaling.

    The temperature divides the logits. It is chosen for each tenth of the questions on the others.
    """
    held = [i for i, each in enumerate(questions) if each.gold_scores]
    loss = torch.full((len(questions), len(TEMPERATURES)), torch.nan, dtype=torch.float64)
    if held:
        loss[held] = -torch.tensor([questions[i].gold_scores for i in held], dtype=torch.float64)
    tempered = loss[:, TEMPERATURES.index(1)].clone()
    for own, others in folds(len(questions)):
        tempered[own] = loss[own, _best(loss[others])]
    return {
        "NLL": loss[:, TEMPERATURES.index(1)].nanmean().item(),
        "NLL + TS": tempered.nanmean().item(),
        "gold in window": len(held) / len(questions),
    }


def _best(loss: Float[Tensor, "question temperature"]) -> int:
    """Returns the index of the best temperature, or of 1 if no loss is known."""
    mean = loss.nanmean(0)
    return TEMPERATURES.index(1) if mean.isnan().any() else int(mean.argmin())


def _candidates(questions: Questions, unanswerable: bool) -> Float[Tensor, "question candidate"]:
    """Returns the scores of the texts that each answer was chosen from."""
    rows = [[score for _, score in each.best] for each in questions]
    # If there is not text, no answer has probability 1.
    rows = [
        [*row, each.null] if unanswerable or not row else row
        for row, each in zip(rows, questions, strict=True)
    ]
    widest = max(map(len, rows))
    padded = [row + [-math.inf] * (widest - len(row)) for row in rows]
    return torch.tensor(padded, dtype=torch.float64)


def _calibration(
    scores: Float[Tensor, "question candidate"], right: Bool[Tensor, "question"]
) -> dict[str, float]:
    """Computes calibration and ranking of the confidence, also with temperature scaling.

    The temperature divides the scores of the candidates. It minimises the log loss of whether the
    answer is right, for each tenth of the questions on the others.
    """
    confidence = _confidence(scores, 1.0)
    tempered = confidence.clone()
    for own, others in folds(len(right)):
        tempered[own] = _confidence(scores[own], _fitted(scores[others], right[others]))
    return {
        f"ECE-{BINS}": confidence_ece(confidence, right.double()),
        f"ECE-{BINS} + TS": confidence_ece(tempered, right.double()),
        "AURC": metrics.aurc(confidence, right),
        "error AUROC": error_auroc(-confidence, right.double()),
    }


def _confidence(scores: Float[Tensor, "question candidate"], temperature: float) -> Values:
    return (scores / temperature).softmax(-1).amax(-1)


def _fitted(scores: Float[Tensor, "question candidate"], right: Bool[Tensor, "question"]) -> float:
    def loss(temperature: float) -> float:
        sure = _confidence(scores, temperature).clamp(1e-6, 1 - 1e-6)
        return -sure.where(right, 1 - sure).log().sum().item()

    return min(TEMPERATURES, key=loss)


def _agreement(
    questions: Questions, texts: Sequence[str], right: Bool[Tensor, "question"]
) -> dict[str, float]:
    """Computes the share of samples that agree with the answer, and its AUROC for errors."""
    if not questions[0].samples:
        return {}
    shares = [
        sum(normalized(sample) == normalized(text) for sample in each.samples) / len(each.samples)
        for each, text in zip(questions, texts, strict=True)
    ]
    agreement = torch.tensor(shares, dtype=torch.float64)
    return {
        "agreement": agreement.mean().item(),
        "agreement AUROC": error_auroc(-agreement, right.double()),
    }


FORMAT = 1
KIND, LINES = "spans", "answers.jsonl.gz"


@dataclass(frozen=True)
class SpanPredictions(Predictions):
    """The predicted answers to all questions of a part.

    Attributes:
        questions: One prediction for each question.
        unanswerable: Whether questions may have no answer, as in SQuAD 2.0.
    """

    questions: tuple[SpanPrediction, ...]
    unanswerable: bool

    def measure(self) -> dict[str, float]:
        """Computes the official scores, calibration, and detection of wrong answers."""
        return measure(self.questions, self.unanswerable)

    def save(self, folder: Path) -> None:
        """Writes `answers.json` and `answers.jsonl.gz`."""
        folder.mkdir(parents=True, exist_ok=True)
        packed = gzip.compress("".join(self._lines()).encode(), mtime=0)
        replace_file(folder / LINES, lambda path: path.write_bytes(packed))
        fields = {
            "questions": len(self.questions),
            "unanswerable": self.unanswerable,
            "temperatures": TEMPERATURES,
        }
        write_description(folder, FORMAT, KIND, fields)

    def _lines(self) -> Iterator[str]:
        for each in self.questions:
            yield json.dumps(asdict(each), ensure_ascii=False) + "\n"

    @classmethod
    def load(cls, folder: Path) -> "SpanPredictions":
        """Reads what `save` wrote."""
        with description_of(folder, FORMAT, KIND) as found:
            lines = gzip.decompress((folder / LINES).read_bytes()).decode().split("\n")[:-1]
            if len(lines) != found["questions"]:
                raise FormatError(
                    f"{folder / LINES} has {len(lines)} of {found['questions']} answers. Test the "
                    "model again."
                )
            return cls(tuple(map(SpanPrediction.parse, lines)), found["unanswerable"])
