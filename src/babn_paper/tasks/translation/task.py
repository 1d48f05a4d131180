"""Translation, tested in the domain of training and in another one; also of your own sentences."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from babn.errors import ConfigError, DataError
from babn.validation import check_at_least, check_choices, check_count
from babn_paper.data.phrases import phrases
from babn_paper.models.translation_parts import IGNORED
from babn_paper.tasks.encoded import Batch, Encoded
from babn_paper.tasks.own_files import FILES, OwnFiles
from babn_paper.tasks.reading import HUB_SPLITS, Row, Rows, check_part, fingerprint, read_hub
from babn_paper.tasks.task import Outputs, Part, Predictor, Task, Tokenizer
from babn_paper.tasks.translation.pairs import (
    NAMES,
    Languages,
    SentencePair,
    content_fingerprint,
    has_part,
    pairs_of,
    read_aligned,
    read_part,
)
from babn_paper.tasks.translation.predictions import (
    Hypothesis,
    Translated,
    TranslationPredictions,
    predict_translations,
    sacrebleu,
)
from babn_paper.tasks.translation.subwords import (
    Preparation,
    encode_pairs,
    encode_sources,
    prepared,
    without_joints,
)

OUT = "out-"
"""Prefix of the parts of the other domain."""

BUILT_IN = Languages("de", "en")
"""Languages of the built-in phrases."""


@dataclass(frozen=True)
class TranslationTask(Task[SentencePair]):
    """Translation from one language to another.

    Attributes:
        name: Name in configurations and folders.
        title: Name in tables.
        folders: Possible names of its subfolder in a data folder.
        other: Possible names of the subfolder of another domain, which is used for testing only.
        hub: The data set on the hub.
        languages: Source and target, by their names in file names and columns.
        prepare: Preparation of sentences: `"as-is"`, `"tokenized"` or `"lowercase"`.
        tokenized: Whether the data is already tokenized.
        train_limit: Maximum number of training pairs, taken from the beginning; 0 for all.
        test_limit: Maximum number of test pairs; 0 for all.
        beam: Number of hypotheses of beam search.
        length_penalty: Exponent of the length penalty (Wu et al. 2016,
            https://arxiv.org/abs/1609.08144).
        scores: Names of the scores in the paper's table.
        test_parts: Parts that a model is evaluated on after training.
        max_length: Maximum number of subwords of a sentence; longer pairs are left out in training,
            and longer sentences are truncated in evaluation.
        multiple: Batches are not padded further: an LSTM takes one step for each subword.
        eval_batch_size: Sentences per batch in evaluation.
    """

    name: str
    title: str
    folders: tuple[str, ...]
    other: tuple[str, ...] = ()
    hub: str = ""
    languages: str = "de-en"
    prepare: Preparation = "as-is"
    tokenized: bool = False
    train_limit: int = 0
    test_limit: int = 0
    beam: int = 10
    length_penalty: float = 1.0
    scores: tuple[str, ...] = ("BLEU",)
    test_parts: tuple[str, ...] = ("dev", "test", "out-dev", "out-test")
    max_length: int = 125
    multiple: int = 1
    eval_batch_size: int = 1024

    own_models = ("lstm",)

    def configured(self, options: Mapping[str, Any]) -> "TranslationTask":
        """Returns the task with other languages, preparation, limits or search settings."""
        known = {field.name for field in fields(self)} & OPTIONS
        if unknown := sorted(set(options) - known):
            raise ConfigError(
                f"task={self.name!r} has no option {', '.join(unknown)}. Options: {sorted(known)}."
            )
        return replace(self, **options)

    def __post_init__(self) -> None:
        """Validates the fields."""
        check_choices(self)
        check_count("beam", self.beam)
        for name in ("length_penalty", "train_limit", "test_limit"):
            check_at_least(name, getattr(self, name), 0)
        Languages.of(self.languages)

    def check_ready(self) -> None:
        """Raises an error if sacreBLEU is not installed."""
        sacrebleu()

    def has(self, data: str, part: str) -> bool:
        """Whether the data has a part."""
        if data in ("builtin", "hub"):
            return part in NAMES
        folder = self._folder(data, part)
        return folder is not None and has_part(folder, part.removeprefix(OUT), self._pair)

    def read(self, data: str, part: str) -> Part[SentencePair]:
        """Reads and prepares the sentences of a part.

        Args:
            data: `"builtin"`, `"hub"`, or a folder as described in `pairs`.
            part: `"train"`, `"dev"`, `"test"`; `"out-dev"` or `"out-test"` of the other domain.
        """
        found = self._read(data, part)
        limit = self.train_limit if part == "train" else self.test_limit
        kept = found.examples[: limit or None]
        how = f"{self.prepare}-{limit}" if limit else self.prepare
        pairs = [SentencePair(*map(self.prepared, (each.source, each.target))) for each in kept]
        return Part(part, pairs, found.origin, f"{found.fingerprint}-{self.languages}-{how}")

    def prepared(self, text: str) -> str:
        """Prepares a sentence for the model."""
        return prepared(without_joints(text) if self.tokenized else text, self.prepare)

    def texts(self, examples: Sequence[SentencePair]) -> Iterator[str]:
        """Yields all sentences, pair after pair."""
        return (text for each in examples for text in (each.source, each.target))

    def encode(
        self, part: Part[SentencePair], tokenizer: Tokenizer, max_length: int, training: bool
    ) -> Encoded:
        """Encodes sources; in training also targets, leaving out pairs that are too long."""
        if training:
            return encode_pairs(part, tokenizer, max_length)
        return encode_sources([each.source for each in part.examples], tokenizer, max_length)

    def dry_run(self, encoded: Encoded) -> Batch:
        """Returns a source and the words of its target."""
        batch = encoded.batch(torch.tensor([0]))
        labels = batch.pop("labels")
        return {**batch, "decoder_input_ids": labels.masked_fill(labels == IGNORED, 0)}

    def predict(
        self, predictor: Predictor, batch: Batch, rows: Int[Tensor, "row"], number: int
    ) -> dict[int, Hypothesis]:
        """Returns the translations of a batch by the index of the sentence."""
        numbers = rows.tolist()
        found = predict_translations(predictor, batch, numbers, self.beam, self.length_penalty)
        return dict(zip(numbers, found, strict=True))

    def predictions(
        self, part: Part[SentencePair], encoded: Encoded, outputs: Outputs
    ) -> TranslationPredictions:
        """Returns the translations in the order of the data."""
        found: dict[int, Hypothesis] = {}
        for _, some in outputs:
            found |= some
        translated = tuple(
            Translated(pair.source, pair.target, found[i].text, found[i].uncertainty)
            for i, pair in enumerate(part.examples)
        )
        return TranslationPredictions(translated, self.tokenized or self.prepare != "as-is")

    def load_predictions(self, folder: Path) -> TranslationPredictions:
        """Reads what `TranslationPredictions.save` wrote."""
        return TranslationPredictions.load(folder)

    @property
    def _pair(self) -> Languages:
        return Languages.of(self.languages)

    def _read(self, data: str, part: str) -> Part[SentencePair]:
        if data == "builtin":
            return self._read_builtin(part)
        if data == "hub":
            return self._read_hub(part)
        folder = self._folder(data, part)
        if folder is None:
            raise DataError(
                f"data={data!r} has no folder {' or '.join(map(repr, self.other)) or 'for it'}, "
                f"which {part!r} is read from. Add it."
            )
        return read_part(folder, part.removeprefix(OUT), self._pair)

    def _folder(self, data: str, part: str) -> Path | None:
        """Returns the folder of a part: a subfolder of the data folder, or the folder itself."""
        whole = Path(data)
        if not whole.is_dir():
            raise DataError(f"data={data!r} is not a folder. Give builtin, hub, or a folder.")
        names = self.other if part.startswith(OUT) else self.folders
        found = (whole / name for name in names if (whole / name).is_dir())
        return next(found, None if part.startswith(OUT) else whole)

    def _read_builtin(self, part: str) -> Part[SentencePair]:
        check_part("builtin", part, NAMES)
        pair = self._pair
        if {*pair} != {*BUILT_IN}:
            raise DataError(
                f"languages={self.languages!r} are not built in, only de-en and en-de. Give a "
                "folder."
            )
        found = phrases(part)
        if pair.source == "en":
            found = [(english, german) for german, english in found]
        pairs = [SentencePair(*each) for each in found]
        return Part(part, pairs, "builtin", content_fingerprint(found))

    def _read_hub(self, part: str) -> Part[SentencePair]:
        check_part("hub", part, NAMES)
        if not self.hub:
            raise DataError(
                f"task={self.name!r} has no data set on the hub. Name one with options.hub, or "
                "give a folder."
            )
        rows, print_ = read_hub(self.hub, None, HUB_SPLITS[part])
        return Part(part, pairs_of(rows, self._pair), f"hub:{self.hub}", print_)


OPTIONS = {
    "beam",
    "hub",
    "languages",
    "length_penalty",
    "prepare",
    "test_limit",
    "tokenized",
    "train_limit",
}
"""Options of a task in configurations."""

IWSLT14_FOLDERS = ("iwslt14", "iwslt14_deen", "iwslt14.tokenized.de-en")


@dataclass(frozen=True)
class OwnTranslation(OwnFiles, TranslationTask):
    """Translation, of files that options name or of a folder as in `translation.pairs`.

    A source of data is a table with a column for each language, or two aligned files as
    `SOURCE,TARGET`.

    Attributes:
        source: Column of the sentences.
        target: Column of their translations.
    """

    source: str = "source"
    target: str = "target"

    further_options: ClassVar[tuple[str, ...]] = (*sorted(OPTIONS), "source", "target")

    def check_ready(self) -> None:
        """Raises an error if sacreBLEU is not installed."""
        TranslationTask.check_ready(self)

    def has(self, data: str, part: str) -> bool:
        """Whether the data has a part."""
        if _is_own(data):
            return part in OwnFiles.tested_parts(self, data)
        return TranslationTask.has(self, data, part)

    def tested_parts(self, data: str) -> list[str]:
        """Returns the parts to evaluate on."""
        base: type[Any] = OwnFiles if _is_own(data) else TranslationTask
        found: list[str] = base.tested_parts(self, data)
        return found

    def _read(self, data: str, part: str) -> Part[SentencePair]:
        if not _is_own(data):
            return super()._read(data, part)
        if not self.train:
            OwnFiles.check_ready(self)
        rows, origin, print_ = self.rows(data, part)
        pairs = [SentencePair(row.text(self.source), row.text(self.target)) for row in rows]
        return Part(part, pairs, origin, print_)

    def column_options(self) -> tuple[str, ...]:
        """Returns the options that name columns."""
        return ("source", "target")

    def read_source(self, source: str, split: str) -> Rows:
        """Reads a table, or two aligned files."""
        first, comma, second = source.partition(",")
        if not comma:
            return super().read_source(source, split)
        paths = [Path(first.strip()), Path(second.strip())]
        for path in paths:
            if not path.is_file():
                raise DataError(f"{path} is not a file. Give two aligned files as SOURCE,TARGET.")
        pairs = enumerate(read_aligned(paths), 1)
        rows = [
            Row({self.source: each.source, self.target: each.target}, f"{paths[0]}:{number}")
            for number, each in pairs
        ]
        return rows, fingerprint(*paths)


def _is_own(data: str) -> bool:
    """Whether options or a file give the data, not a folder or a corpus by name."""
    return data == FILES or not (data in ("builtin", "hub") or Path(data).is_dir())


TASKS = {
    task.name: task
    for task in (
        TranslationTask(
            "iwslt14",
            "IWSLT14",
            IWSLT14_FOLDERS,
            hub="bbaaaa/iwslt14-de-en-preprocess",
            tokenized=True,
        ),
        # Prepared like the texts of IWSLT14, so that these can be the other domain.
        TranslationTask(
            "tatoeba",
            "Tatoeba",
            ("tatoeba", "tatoeba_deen"),
            other=IWSLT14_FOLDERS,
            prepare="lowercase",
        ),
        OwnTranslation("translation", "translation", ("translation",)),
    )
}
"""The tasks by name."""
