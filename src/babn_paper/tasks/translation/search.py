"""Translation by beam search, with the model's uncertainty about the result."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from babn.attention.noise_source import fold_in
from babn_paper.models.assess import Assessment, assess
from babn_paper.models.translate import translate
from babn_paper.models.translation_parts import IGNORED, logits_at_once
from babn_paper.tasks.encoded import Batch
from babn_paper.tasks.task import Predictor
from babn_paper.tasks.translation.subwords import SPACE


@dataclass(frozen=True)
class Word:
    """A word of a translation, and the model's uncertainty about its subwords, by measure."""

    text: str
    uncertainty: dict[str, float]


@dataclass(frozen=True)
class Hypothesis:
    """A translation.

    Attributes:
        text: The sentence.
        score: Its log-probability, divided by the length penalty.
        uncertainty: The model's uncertainty, by measure: means over subwords and the end token of
            the negative log-probability (`NLL`) and of the entropy; with samples also of the mutual
            information, and the standard deviation over samples of the mean log-probability
            (`spread`).
        words: Uncertainty of each word.
    """

    text: str
    score: float
    uncertainty: dict[str, float]
    words: tuple[Word, ...]


def predict_translations(
    predictor: Predictor, batch: Batch, numbers: Sequence[int], beam: int, length_penalty: float
) -> list[Hypothesis]:
    """Returns the best translation of each sentence, in batches that fit into memory.

    With samples of attention, the probability of a word is the mean over samples, in the search as
    well. With samples of dropout, the search uses the mean, and samples assess its result only.

    Args:
        predictor: The model and the settings of prediction.
        batch: The sentences.
        numbers: Indices of the sentences, which determine their noise.
        beam: Number of hypotheses.
        length_penalty: Exponent of the length penalty; larger values prefer longer targets.
    """
    model: Any = predictor.model
    samples = predictor.samples if predictor.mode == "sampled" else 1
    size = max(1, logits_at_once(model.device) // (beam * samples * model.config.vocab_size))
    places = torch.arange(len(numbers)).split(size)
    return [
        found
        for some in places
        for found in _translations(
            predictor,
            {name: each[some.to(each.device)] for name, each in batch.items()},
            [numbers[i] for i in some.tolist()],
            beam,
            length_penalty,
        )
    ]


def _translations(
    predictor: Predictor, batch: Batch, numbers: Sequence[int], beam: int, length_penalty: float
) -> Iterator[Hypothesis]:
    model: Any = predictor.model
    found = translate(
        model,
        batch,
        beam,
        length_penalty,
        predictor.max_length,
        predictor.samples if predictor.mode == "sampled" else None,
        predictor.seed,
        numbers,
    )
    targets = found.words[:, 0]
    targets = targets[:, : int((targets != found.pad).sum(1).max())]
    assessed = _assessed(
        predictor, batch, targets.masked_fill(targets == found.pad, IGNORED), numbers
    )
    texts = predictor.tokenizer.batch_decode(found.best, skip_special_tokens=True)
    measures = _measures(assessed, predictor.mode != "mean")
    spreads, scores = assessed.spread.tolist(), found.scores[:, 0].tolist()
    for row, text in enumerate(texts):
        ids = [int(i) for i in targets[row].tolist() if i != found.pad]
        each = {name: values[row][: len(ids)] for name, values in measures.items()}
        unsure = {name: _mean(values) for name, values in each.items()}
        if predictor.mode != "mean":
            unsure["spread"] = spreads[row]
        words = tuple(_words(predictor.tokenizer.convert_ids_to_tokens(ids), each, ids, found.eos))
        yield Hypothesis(text, scores[row], unsure, words)


def _assessed(
    predictor: Predictor, batch: Batch, targets: Int[Tensor, "row word"], numbers: Sequence[int]
) -> Assessment:
    """Assesses targets in batches that fit into memory."""
    model: Any = predictor.model
    size = max(1, logits_at_once(targets.device) // (targets.shape[1] * model.config.vocab_size))
    samples = None if predictor.mode == "mean" else predictor.samples
    dropout, parts = predictor.mode == "dropout", []
    for some in torch.arange(len(numbers), device=targets.device).split(size):
        own = [numbers[i] for i in some.tolist()]
        # The noise of dropout depends on the batch, so every batch has its own seed.
        seed = fold_in(predictor.seed, own[0]) if dropout else predictor.seed
        chosen = {name: each[some] for name, each in batch.items()}
        parts.append(assess(model, chosen, targets[some], samples, seed, own, dropout=dropout))
    named = ([getattr(part, field.name) for part in parts] for field in fields(Assessment))
    return Assessment(*map(torch.cat, named))


def _measures(assessed: Assessment, sampled: bool) -> dict[str, list[list[float]]]:
    found = {"NLL": (-assessed.log_probs).tolist(), "entropy": assessed.entropy.tolist()}
    if sampled:
        found["mutual information"] = assessed.mutual_information.tolist()
    return found


def _words(
    pieces: Sequence[str], measures: dict[str, list[float]], ids: Sequence[int], eos: int
) -> Iterator[Word]:
    """Joins subwords to words; the end token belongs to none."""
    starts = [i for i, piece in enumerate(pieces) if i == 0 or piece.startswith(SPACE)]
    last = len(pieces) - (bool(ids) and ids[-1] == eos)
    for start, end in zip(starts, [*starts[1:], last], strict=True):
        if start < last:
            text = "".join(pieces[start : min(end, last)]).replace(SPACE, "")
            yield Word(text, {n: _mean(v[start:end]) for n, v in measures.items()})


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))
