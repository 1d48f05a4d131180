"""Every number that follows from answers to questions on paragraphs."""

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from babn import metrics
from babn.metrics import calibration_error as binned
from babn_paper.tasks.cross_fitting import folds
from babn_paper.tasks.span_answer import TEMPERATURES, SpanAnswer
from babn_paper.tasks.squad_rules import Judge, best_threshold, normalized

BINS = 10

Answered = Sequence[SpanAnswer]
Numbers = Float[Tensor, "question"]


def measure(questions: Answered, unanswerable: bool) -> dict[str, float]:
    """All measures; NaN where one is not defined, as when every answer is right.

    Confidence is the probability of the answer among the best texts of its question, and no answer
    where that is one. It is held against `exact`, for SQuAD 2.0 `exact (threshold 0)`.
    """
    texts = [_text(each, unanswerable) for each in questions]
    judge = Judge(unanswerable)
    right = _judged(judge.exact, texts, questions) == 1
    overlap = _judged(judge.f1, texts, questions)
    scores = {"exact": right.double().mean().item(), "F1": overlap.mean().item()}
    if unanswerable:
        scores = _with_threshold(questions, judge) | _at_zero(questions, scores, overlap)
    return (
        scores
        | _likelihood(questions)
        | _certainty(_candidates(questions, unanswerable), right)
        | _agreement(questions, texts, right)
    )


def _text(answer: SpanAnswer, unanswerable: bool) -> str:
    """The most probable answer; empty for none."""
    if not answer.best:
        return ""
    text, score = answer.best[0]
    return "" if unanswerable and answer.null > score else text


def _judged(
    score: Callable[[str, Sequence[str]], float], texts: Sequence[str], questions: Answered
) -> Numbers:
    pairs = zip(texts, questions, strict=True)
    return torch.tensor([score(text, each.golds) for text, each in pairs], dtype=torch.float64)


def _with_threshold(questions: Answered, judge: Judge) -> dict[str, float]:
    """Scores at the best threshold of no answer, chosen on these questions as officially done."""
    texts = [_text(each, False) for each in questions]
    odds = [each.null - each.best[0][1] if each.best else math.inf for each in questions]
    answerable = torch.tensor([bool(each.golds) for each in questions])
    chances = torch.tensor(odds, dtype=torch.float64)
    return {
        name: best_threshold(_judged(score, texts, questions), chances, answerable)[0]
        for name, score in (("exact", judge.exact), ("F1", judge.f1))
    }


def _at_zero(questions: Answered, scores: dict[str, float], overlap: Numbers) -> dict[str, float]:
    """Scores where no answer is given if it is the most probable one, which needs no threshold."""
    answerable = torch.tensor([bool(each.golds) for each in questions])
    kinds = {"HasAns F1": overlap[answerable], "NoAns F1": overlap[~answerable]}
    found = scores | {name: each.mean().item() for name, each in kinds.items()}
    return {f"{name} (threshold 0)": value for name, value in found.items()}


def _likelihood(questions: Answered) -> dict[str, float]:
    """NLL of the right span where a window holds one, and with a temperature from other questions.

    The temperature divides the logits. For each tenth of the questions it is chosen on the others.
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
    """The place of the best temperature; of 1 if there is nothing to choose by."""
    mean = loss.nanmean(0)
    return TEMPERATURES.index(1) if mean.isnan().any() else int(mean.argmin())


def _candidates(questions: Answered, unanswerable: bool) -> Float[Tensor, "question candidate"]:
    """Log-probabilities of the texts that a question's answer was chosen from."""
    rows = [[score for _, score in each.best] for each in questions]
    # Without any text, not to answer is certain.
    rows = [
        [*row, each.null] if unanswerable or not row else row
        for row, each in zip(rows, questions, strict=True)
    ]
    widest = max(map(len, rows))
    padded = [row + [-math.inf] * (widest - len(row)) for row in rows]
    return torch.tensor(padded, dtype=torch.float64)


def _certainty(
    scores: Float[Tensor, "question candidate"], right: Bool[Tensor, "question"]
) -> dict[str, float]:
    """Calibration and ranking of the confidence, also with a temperature from other questions.

    The temperature divides the scores of the candidates. It is the one with the smallest log loss
    for whether the answer is right, chosen for each tenth of the questions on the others.
    """
    confidence = _confidence(scores, 1.0)
    tempered = confidence.clone()
    for own, others in folds(len(right)):
        tempered[own] = _confidence(scores[own], _fitted(scores[others], right[others]))
    return {
        f"ECE-{BINS}": _ece(confidence, right),
        f"ECE-{BINS} + TS": _ece(tempered, right),
        "AURC": metrics.aurc(confidence, right),
        "error AUROC": _error_auroc(confidence, right),
    }


def _confidence(scores: Float[Tensor, "question candidate"], temperature: float) -> Numbers:
    return (scores / temperature).softmax(-1).amax(-1)


def _fitted(scores: Float[Tensor, "question candidate"], right: Bool[Tensor, "question"]) -> float:
    def loss(temperature: float) -> float:
        sure = _confidence(scores, temperature).clamp(1e-6, 1 - 1e-6)
        return -sure.where(right, 1 - sure).log().sum().item()

    return min(TEMPERATURES, key=loss)


def _ece(confidence: Numbers, right: Bool[Tensor, "question"]) -> float:
    cells = binned.bin_index(confidence, BINS)
    return binned.mean_gap(binned.cell_sums(cells, confidence, right.to(confidence), BINS)).item()


def _error_auroc(confidence: Numbers, right: Bool[Tensor, "question"]) -> float:
    """Chance that a wrong answer is less sure than a right one."""
    if right.all() or not right.any():
        return math.nan
    return metrics.auroc(-confidence[right], -confidence[~right])


def _agreement(
    questions: Answered, texts: Sequence[str], right: Bool[Tensor, "question"]
) -> dict[str, float]:
    """How many samples give the answer by themselves, and how well that tells right from wrong."""
    if not questions[0].samples:
        return {}
    shares = [
        sum(normalized(sample) == normalized(text) for sample in each.samples) / len(each.samples)
        for each, text in zip(questions, texts, strict=True)
    ]
    agreement = torch.tensor(shares, dtype=torch.float64)
    return {
        "agreement": agreement.mean().item(),
        "agreement AUROC": _error_auroc(agreement, right),
    }
