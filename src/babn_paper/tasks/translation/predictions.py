"""Translations of a model, with their quality and uncertainty."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from babn.errors import FormatError, import_extra
from babn.files import parse_json, replace_text
from babn_paper.tasks.scores import pearson, spearman
from babn_paper.tasks.task import Predictions
from babn_paper.tasks.translation.subwords import prepared


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
