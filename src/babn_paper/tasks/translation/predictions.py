"""Translations of a model by beam search, with their quality and uncertainty."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from babn.attention.noise_source import fold_in
from babn.errors import FormatError, import_extra
from babn.files import parse_json, replace_text
from babn_paper.models.assess import Assessment, assess
from babn_paper.models.translate import translate
from babn_paper.models.translation_parts import IGNORED, logits_at_once
from babn_paper.tasks.encoded import Batch
from babn_paper.tasks.scores import pearson, spearman
from babn_paper.tasks.task import Predictions, Predictor
from babn_paper.tasks.translation.subwords import SPACE, prepared


def multi_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Computes BLEU of tokenized sentences with one reference, as `multi-bleu.perl` of Moses does.

    BLEU (Papineni et al. 2002, https://doi.org/10.3115/1073083.1073135) is not smoothed: it is 0 if
    no sequence of four words is right.

    Args:
        hypotheses: Tokenized translations.
        references: Tokenized references.
    """
    bleu = sacrebleu().BLEU(tokenize="none", smooth_method="none", force=True)
    return float(bleu.corpus_score(hypotheses, [references]).score) / 100


LINES, ABOUT = "translations.jsonl", "about.json"


@dataclass(frozen=True)
class Translated:
    """A sentence and its translation.

    Attributes:
        source: The sentence.
        reference: Its reference translation.
        hypothesis: The model's translation.
        uncertainty: The model's uncertainty, by measure.
    """

    source: str
    reference: str
    hypothesis: str
    uncertainty: dict[str, float]


@dataclass(frozen=True)
class TranslationPredictions(Predictions):
    """Translations of a part.

    Attributes:
        translated: The sentences in the order of the data.
        tokenized: Whether words and punctuation are already separated by spaces.
        about: Method and seed, for readers of the file.
    """

    translated: tuple[Translated, ...]
    tokenized: bool
    about: dict[str, Any] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Writes one line of JSON for each sentence."""
        folder.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(asdict(each), ensure_ascii=False) for each in self.translated]
        replace_text(folder / LINES, "\n".join(lines) + "\n")
        about = {"tokenized": self.tokenized, **self.about}
        replace_text(folder / ABOUT, json.dumps(about) + "\n")

    @classmethod
    def load(cls, folder: Path) -> "TranslationPredictions":
        """Reads what `save` wrote."""
        try:
            about = parse_json((folder / ABOUT).read_text(encoding="utf-8"))
            # Lines end with \n only; sentences may contain other line separators.
            lines = (folder / LINES).read_text(encoding="utf-8").rstrip("\n").split("\n")
            translated = tuple(Translated(**parse_json(line)) for line in lines)
            return cls(translated, about.pop("tokenized"), about)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise FormatError(
                f"{folder} holds no translations: {error!r}. Test the model again."
            ) from error

    def measure(self) -> dict[str, float]:
        """Computes BLEU and chrF, and their correlation with uncertainty.

        `BLEU` is the tokenized BLEU of `multi-bleu.perl`. Correlations are between a measure of
        uncertainty and chrF over sentences: the closer to -1, the better uncertainty finds bad
        translations.
        """
        bleu, chrf, _ = self._corpus_scores
        quality = torch.tensor(self.sentence_chrf())
        found = {
            "BLEU": multi_bleu(*(self._words(side) for side in ("hypothesis", "reference"))),
            "sacreBLEU": bleu,
            "chrF": chrf,
            "sentences": float(len(self.translated)),
        }
        for name in self.translated[0].uncertainty:
            unsure = torch.tensor([each.uncertainty[name] for each in self.translated])
            found[f"chrF~{name} Pearson"] = pearson(unsure, quality)
            found[f"chrF~{name} Spearman"] = spearman(unsure, quality)
        return found

    def notes(self) -> dict[str, str]:
        """Returns the signature of sacreBLEU."""
        return {"sacreBLEU": self._corpus_scores[2]}

    def named(self, method: str, seed: int) -> "TranslationPredictions":
        """Returns the predictions with another method name and seed."""
        return replace(self, about={"method": method, "seed": seed})

    def sentence_chrf(self) -> list[float]:
        """Returns the chrF of each sentence, from 0 to 1."""
        metric = sacrebleu().CHRF()
        return [
            metric.sentence_score(each.hypothesis, [each.reference]).score / 100
            for each in self.translated
        ]

    @cached_property
    def _corpus_scores(self) -> tuple[float, float, str]:
        """BLEU and chrF of sacreBLEU from 0 to 1, and the signature of BLEU."""
        hypotheses = [each.hypothesis for each in self.translated]
        references = [[each.reference for each in self.translated]]
        package = sacrebleu()
        bleu = package.BLEU(tokenize="none" if self.tokenized else "13a", force=True)
        chrf = package.CHRF().corpus_score(hypotheses, references).score / 100
        score = bleu.corpus_score(hypotheses, references).score / 100
        return score, chrf, str(bleu.get_signature())

    def _words(self, side: str) -> Sequence[str]:
        texts = [getattr(each, side) for each in self.translated]
        return texts if self.tokenized else [prepared(text, "tokenized") for text in texts]


def sacrebleu() -> Any:
    """Imports the metrics of sacreBLEU."""
    need = "Scores of translations need sacrebleu"
    return import_extra("sacrebleu.metrics", need, "translation")


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
