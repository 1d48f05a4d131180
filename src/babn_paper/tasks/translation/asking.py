"""Asking a translation model: beam search, and how sure the model is of what it found."""

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
from babn_paper.tasks.asking import Asking
from babn_paper.tasks.encoded import Batch
from babn_paper.tasks.translation.subwords import SPACE


@dataclass(frozen=True)
class Word:
    """A word of a translation, and how unsure the model is of its pieces, by measure."""

    text: str
    uncertainty: dict[str, float]


@dataclass(frozen=True)
class Hypothesis:
    """A translation.

    Attributes:
        text: The sentence.
        score: Its log-probability, divided by the length penalty.
        uncertainty: How unsure the model is, by measure: means over pieces and the end of the
            negative log-probability (`NLL`) and of the entropy; with samples also of the mutual
            information, and the `spread` of the mean log-probability over samples.
        words: The same for each word.
    """

    text: str
    score: float
    uncertainty: dict[str, float]
    words: tuple[Word, ...]


@dataclass(frozen=True)
class Search:
    """Settings of beam search.

    Attributes:
        beam: Hypotheses that are kept.
        length_penalty: How much longer targets are preferred.
    """

    beam: int
    length_penalty: float


def ask_translations(
    asking: Asking, batch: Batch, numbers: Sequence[int], search: Search
) -> list[Hypothesis]:
    """The best translation of each sentence, by as many at a time as memory allows.

    By samples of attention, a word's probability is their mean, in the search as well. By samples
    of dropout the search is that of the mean, and only its result is judged by samples.

    Args:
        asking: The model, and how to ask it.
        batch: The sentences.
        numbers: Of the sentences; they choose noise.
        search: Settings.
    """
    model: Any = asking.model
    samples = asking.samples if asking.mode == "sampled" else 1
    size = max(1, logits_at_once(model.device) // (search.beam * samples * model.config.vocab_size))
    places = torch.arange(len(numbers)).split(size)
    return [
        found
        for some in places
        for found in _ask(
            asking,
            {name: each[some.to(each.device)] for name, each in batch.items()},
            [numbers[i] for i in some.tolist()],
            search,
        )
    ]


def _ask(
    asking: Asking, batch: Batch, numbers: Sequence[int], search: Search
) -> Iterator[Hypothesis]:
    model: Any = asking.model
    found = translate(
        model,
        batch,
        search.beam,
        search.length_penalty,
        asking.max_length,
        asking.samples if asking.mode == "sampled" else None,
        asking.seed,
        numbers,
    )
    targets = found.words[:, 0]
    targets = targets[:, : int((targets != found.pad).sum(1).max())]
    judged = _judged(asking, batch, targets.masked_fill(targets == found.pad, IGNORED), numbers)
    texts = asking.tokenizer.batch_decode(found.best, skip_special_tokens=True)
    measures = _measures(judged, asking.mode != "mean")
    spreads, scores = judged.spread.tolist(), found.scores[:, 0].tolist()
    for row, text in enumerate(texts):
        ids = [int(i) for i in targets[row].tolist() if i != found.pad]
        each = {name: values[row][: len(ids)] for name, values in measures.items()}
        unsure = {name: _mean(values) for name, values in each.items()}
        if asking.mode != "mean":
            unsure["spread"] = spreads[row]
        words = tuple(_words(asking.tokenizer.convert_ids_to_tokens(ids), each, ids, found.eos))
        yield Hypothesis(text, scores[row], unsure, words)


def _judged(
    asking: Asking, batch: Batch, targets: Int[Tensor, "row word"], numbers: Sequence[int]
) -> Assessment:
    """How sure the model is of targets, by as many at a time as memory allows."""
    model: Any = asking.model
    size = max(1, logits_at_once(targets.device) // (targets.shape[1] * model.config.vocab_size))
    samples = None if asking.mode == "mean" else asking.samples
    dropout, parts = asking.mode == "dropout", []
    for some in torch.arange(len(numbers), device=targets.device).split(size):
        own = [numbers[i] for i in some.tolist()]
        # Dropout's noise belongs to a batch, so every batch has a seed of its own.
        seed = fold_in(asking.seed, own[0]) if dropout else asking.seed
        chosen = {name: each[some] for name, each in batch.items()}
        parts.append(assess(model, chosen, targets[some], samples, seed, own, dropout=dropout))
    named = ([getattr(part, field.name) for part in parts] for field in fields(Assessment))
    return Assessment(*map(torch.cat, named))


def _measures(judged: Assessment, sampled: bool) -> dict[str, list[list[float]]]:
    found = {"NLL": (-judged.log_probs).tolist(), "entropy": judged.entropy.tolist()}
    if sampled:
        found["mutual information"] = judged.mutual_information.tolist()
    return found


def _words(
    pieces: Sequence[str], measures: dict[str, list[float]], ids: Sequence[int], eos: int
) -> Iterator[Word]:
    """Pieces put together to words; the end belongs to none."""
    starts = [i for i, piece in enumerate(pieces) if i == 0 or piece.startswith(SPACE)]
    last = len(pieces) - (bool(ids) and ids[-1] == eos)
    for start, end in zip(starts, [*starts[1:], last], strict=True):
        if start < last:
            text = "".join(pieces[start : min(end, last)]).replace(SPACE, "")
            yield Word(text, {n: _mean(v[start:end]) for n, v in measures.items()})


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))


def as_rows(found: Sequence[Hypothesis], rows: Int[Tensor, "row"]) -> dict[int, Hypothesis]:
    """Hypotheses by the place of their sentence."""
    return dict(zip(rows.tolist(), found, strict=True))
