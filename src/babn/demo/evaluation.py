"""What a trained model answers, and how good its uncertainty is."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import babn
from babn import metrics
from babn.data.intents import Ambiguous, Labelled
from babn.demo.batches import Tokenizer, device_of, encode

BATCH = 16
"""Texts in one pass; small, because every sample adds as many again."""


@dataclass(frozen=True)
class Texts:
    """The texts that models are judged by."""

    clear: Labelled
    outside: tuple[str, ...]
    ambiguous: tuple[Ambiguous, ...]

    def all(self) -> list[str]:
        """Every text, kind after kind."""
        return [*self.clear.texts, *self.outside, *(item.text for item in self.ambiguous)]


@dataclass(frozen=True)
class Answers:
    """A model's predictions for the three kinds of text."""

    clear: babn.Prediction
    outside: babn.Prediction
    ambiguous: babn.Prediction

    @property
    def samples(self) -> int:
        """Samples behind each prediction."""
        return len(self.clear.sample_logits)


@dataclass(frozen=True)
class Scores:
    """One row of the demo's table.

    Attributes:
        accuracy: Share of clear texts whose intent is found.
        nll: Mean negative log probability of a clear text's intent.
        ece: Expected calibration error on clear texts.
        auroc_entropy: Chance that an out-of-scope text has the higher entropy than a clear one.
        auroc_mutual_information: The same with mutual information; `None` without samples.
        entropy_clear: Mean entropy of clear texts.
        entropy_ambiguous: Mean entropy of ambiguous texts.
        both_on_top: Share of ambiguous texts whose two intents are the two most probable.
    """

    accuracy: float
    nll: float
    ece: float
    auroc_entropy: float
    auroc_mutual_information: float | None
    entropy_clear: float
    entropy_ambiguous: float
    both_on_top: float


def answer(
    model: nn.Module,
    tokenizer: Tokenizer,
    texts: Texts,
    samples: int | None,
    seed: int,
    report: Callable[[int], None],
) -> Answers:
    """Predictions by the posterior mean, or by `samples` samples of attention."""
    everything = texts.all()
    lengths = [len(ids) for ids in tokenizer(everything)["input_ids"]]
    order = sorted(range(len(everything)), key=lengths.__getitem__)
    parts = []
    for start in range(0, len(order), BATCH):
        rows = order[start : start + BATCH]
        batch = encode(tokenizer, [everything[i] for i in rows], device_of(model))
        parts.append(_logits(model, batch, samples, seed + start).cpu())
        report(len(rows))
    logits = torch.cat(parts, dim=1)[:, torch.tensor(order).argsort()]
    sizes = [len(texts.clear), len(texts.outside), len(texts.ambiguous)]
    return Answers(*(babn.Prediction(part) for part in logits.split(sizes, dim=1)))


def _logits(model: nn.Module, batch: dict[str, Tensor], samples: int | None, seed: int) -> Tensor:
    """Logits with samples first; one row, that of the posterior mean, if `samples` is `None`."""
    if samples is not None:
        return babn.predict(model, batch, samples, seed).sample_logits
    model.eval()
    with torch.no_grad():
        return model(**batch).logits.unsqueeze(0)


def score(answers: Answers, texts: Texts, intents: Sequence[str]) -> Scores:
    """The numbers of one row of the table."""
    probs, labels = answers.clear.probs, torch.tensor(texts.clear.labels)
    sampled = answers.samples > 1
    return Scores(
        accuracy=metrics.accuracy(probs, labels),
        nll=metrics.nll(probs, labels),
        ece=metrics.ece(probs, labels),
        auroc_entropy=metrics.auroc(answers.clear.entropy, answers.outside.entropy),
        auroc_mutual_information=metrics.auroc(
            answers.clear.mutual_information, answers.outside.mutual_information
        )
        if sampled
        else None,
        entropy_clear=answers.clear.entropy.mean().item(),
        entropy_ambiguous=answers.ambiguous.entropy.mean().item(),
        both_on_top=both_on_top(answers.ambiguous.probs, texts.ambiguous, intents),
    )


def both_on_top(probs: Tensor, texts: Sequence[Ambiguous], intents: Sequence[str]) -> float:
    """Share of ambiguous texts whose two intents are the two most probable, in either order."""
    tops = [{intents[i] for i in row} for row in probs.topk(2).indices.tolist()]
    hits = [top == set(text.intents) for top, text in zip(tops, texts, strict=True)]
    return sum(hits) / len(hits)
