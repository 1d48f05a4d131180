"""What a model translated, and how good and how sure it was."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from babn.errors import FormatError, MissingExtraError
from babn.files import parse_json, replace_text
from babn_paper.tasks.scores import pearson, spearman
from babn_paper.tasks.task import Answers
from babn_paper.tasks.translation.bleu import multi_bleu
from babn_paper.tasks.translation.preparation import prepared

LINES, ABOUT = "translations.jsonl", "about.json"


@dataclass(frozen=True)
class Translated:
    """A sentence and what became of it.

    Attributes:
        source: The sentence.
        reference: Its right translation.
        hypothesis: The model's.
        uncertainty: How unsure the model is, by measure.
    """

    source: str
    reference: str
    hypothesis: str
    uncertainty: dict[str, float]


@dataclass(frozen=True)
class TranslationAnswers(Answers):
    """Translations of a part.

    Attributes:
        translated: The sentences in the order of the data.
        tokenized: Whether spaces stand between words and punctuation already.
        about: Method and seed, for whoever reads the file.
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
    def load(cls, folder: Path) -> "TranslationAnswers":
        """Reads what `save` wrote."""
        try:
            about = parse_json((folder / ABOUT).read_text(encoding="utf-8"))
            # Only \n ends a line here: a sentence may hold other signs that look like an end.
            lines = (folder / LINES).read_text(encoding="utf-8").rstrip("\n").split("\n")
            translated = tuple(Translated(**parse_json(line)) for line in lines)
            return cls(translated, about.pop("tokenized"), about)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise FormatError(f"{folder} holds no translations: {error!r}.") from error

    def measure(self) -> dict[str, float]:
        """BLEU and chrF, and how uncertainty goes with the quality of a sentence.

        `BLEU` is the tokenised one of `multi-bleu.perl`. Correlations are between a measure of
        uncertainty and chrF, sentence by sentence: the nearer to -1, the better it tells bad
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
        """The signature of sacreBLEU."""
        return {"sacreBLEU": self._corpus_scores[2]}

    def named(self, method: str, seed: int) -> "TranslationAnswers":
        """The answers with another method and seed."""
        return replace(self, about={"method": method, "seed": seed})

    def sentence_chrf(self) -> list[float]:
        """The chrF of each sentence, between 0 and 1."""
        metric = sacrebleu().CHRF()
        return [
            metric.sentence_score(each.hypothesis, [each.reference]).score / 100
            for each in self.translated
        ]

    @cached_property
    def _corpus_scores(self) -> tuple[float, float, str]:
        """BLEU and chrF of sacreBLEU between 0 and 1, and BLEU's signature."""
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
    """The metrics of sacreBLEU."""
    try:
        from sacrebleu import metrics
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "Scores of translations need sacrebleu: pip install 'babn[translation]'"
        ) from error
    return metrics
