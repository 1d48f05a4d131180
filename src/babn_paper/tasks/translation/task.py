"""Translation, trained on parallel texts and tested on others, also of another domain."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from babn.errors import ConfigError, DataError
from babn.validation import check_at_least, check_choices, check_count
from babn_paper.data.phrases import phrases
from babn_paper.models.translation_parts import IGNORED
from babn_paper.tasks.asking import Asking
from babn_paper.tasks.encoded import Batch, Encoded
from babn_paper.tasks.hub import read_hub
from babn_paper.tasks.task import Asked, Part, Task, Tokenizer
from babn_paper.tasks.translation.answers import Translated, TranslationAnswers, sacrebleu
from babn_paper.tasks.translation.asking import Hypothesis, Search, as_rows, ask_translations
from babn_paper.tasks.translation.encoding import encode_pairs, encode_sources
from babn_paper.tasks.translation.pairs import (
    NAMES,
    SPLITS,
    Languages,
    SentencePair,
    content_fingerprint,
    has_part,
    pairs_of,
    read_part,
)
from babn_paper.tasks.translation.preparation import Preparation, prepared, without_joints

OUT = "out-"
"""What names of the other domain's parts begin with."""

BUILT_IN = Languages("de", "en")
"""What the phrases that come with the package are in."""


@dataclass(frozen=True)
class TranslationTask(Task[SentencePair]):
    """Translation from one language to another.

    Attributes:
        name: In configurations and folders.
        title: In tables.
        folders: What its folder may be called within a folder of all data.
        other: What that of another domain may be called, which is only tested on.
        hub: The data set on the hub.
        languages: Source and target, by the names that files and columns have.
        prepare: What is done to sentences: `"as-is"`, `"tokenized"` or `"lowercase"`.
        tokenized: Whether words stand apart in the data already.
        train_limit: The most training pairs, the first ones; 0 for all.
        test_limit: The most pairs to test on; 0 for all.
        beam: Hypotheses of beam search.
        length_penalty: How much it prefers longer ones (Wu et al. 2016).
        scores: Names of the measures that the paper's table shows.
        test_parts: Parts that a model is tested on after training.
        max_length: Pieces of the longest sentence; longer pairs are not trained on, and longer
            sentences are cut.
        multiple: Batches are no longer than they have to be: LSTMs take a step for each piece.
        asked_together: Sentences in a batch of test data.
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
    asked_together: int = 1024

    def configured(self, options: Mapping[str, Any]) -> "TranslationTask":
        """The task with other languages, another preparation, limits or search."""
        known = {field.name for field in fields(self)} & OPTIONS
        if unknown := sorted(set(options) - known):
            raise ConfigError(
                f"task={self.name!r} has no option {', '.join(unknown)}. Options: {sorted(known)}."
            )
        return replace(self, **options)

    def __post_init__(self) -> None:
        """Refuses values that cannot work."""
        check_choices(self)
        check_count("beam", self.beam)
        for name in ("length_penalty", "train_limit", "test_limit"):
            check_at_least(name, getattr(self, name), 0)
        Languages.of(self.languages)

    def check_ready(self) -> None:
        """Refuses to begin without sacreBLEU."""
        sacrebleu()

    def has(self, data: str, part: str) -> bool:
        """Whether the data has a part."""
        if data in ("builtin", "hub"):
            return part in NAMES
        folder = self._folder(data, part)
        return folder is not None and has_part(folder, part.removeprefix(OUT), self._pair)

    def read(self, data: str, part: str) -> Part[SentencePair]:
        """The sentences of a part, prepared.

        Args:
            data: `"builtin"`, `"hub"`, or a folder as `pairs` describes it.
            part: `"train"`, `"dev"`, `"test"`; `"out-dev"` or `"out-test"` of the other domain.
        """
        found = self._read(data, part)
        limit = self.train_limit if part == "train" else self.test_limit
        kept = found.examples[: limit or None]
        how = f"{self.prepare}-{limit}" if limit else self.prepare
        pairs = [SentencePair(*map(self.prepared, (each.source, each.target))) for each in kept]
        return Part(part, pairs, found.origin, f"{found.fingerprint}-{self.languages}-{how}")

    def prepared(self, text: str) -> str:
        """A sentence as the model knows it."""
        return prepared(without_joints(text) if self.tokenized else text, self.prepare)

    def texts(self, examples: Sequence[SentencePair]) -> Iterator[str]:
        """All sentences, pair after pair."""
        return (text for each in examples for text in (each.source, each.target))

    def load_model(self, name: str, **settings: Any) -> nn.Module:
        """There are no pretrained ones."""
        raise ConfigError(f"model={name!r} does not translate. Give lstm.")

    def make_model(self, sizes: Mapping[str, Any]) -> nn.Module:
        """An ALBERT does not translate."""
        raise ConfigError(f"task={self.name!r} needs a model that translates. Give lstm.")

    def encode(
        self, part: Part[SentencePair], tokenizer: Tokenizer, max_length: int, training: bool
    ) -> Encoded:
        """Pieces of sources; in training also of targets, without pairs that are too long."""
        if training:
            return encode_pairs(part, tokenizer, max_length)
        return encode_sources([each.source for each in part.examples], tokenizer, max_length)

    def dry_run(self, encoded: Encoded) -> Batch:
        """A source and the words of its target."""
        batch = encoded.batch(torch.tensor([0]))
        labels = batch.pop("labels")
        return {**batch, "decoder_input_ids": labels.masked_fill(labels == IGNORED, 0)}

    def output(self, output: Any) -> Tensor:
        """The logits of next words."""
        logits: Tensor = output.logits
        return logits

    def ask(
        self, asking: Asking, batch: Batch, rows: Int[Tensor, "row"], number: int
    ) -> dict[int, Hypothesis]:
        """The translations of a batch, by places of the sentences."""
        search = Search(self.beam, self.length_penalty)
        return as_rows(ask_translations(asking, batch, rows.tolist(), search), rows)

    def answers(
        self, part: Part[SentencePair], encoded: Encoded, asked: Asked
    ) -> TranslationAnswers:
        """The translations in the order of the data."""
        found: dict[int, Hypothesis] = {}
        for _, some in asked:
            found |= some
        translated = tuple(
            Translated(pair.source, pair.target, found[i].text, found[i].uncertainty)
            for i, pair in enumerate(part.examples)
        )
        return TranslationAnswers(translated, self.tokenized or self.prepare != "as-is")

    def load_answers(self, folder: Path) -> TranslationAnswers:
        """Reads what `TranslationAnswers.save` wrote."""
        return TranslationAnswers.load(folder)

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
                f"of which {part!r} would be."
            )
        return read_part(folder, part.removeprefix(OUT), self._pair)

    def _folder(self, data: str, part: str) -> Path | None:
        """The folder of a part: within the folder of all data, or that itself."""
        whole = Path(data)
        if not whole.is_dir():
            raise DataError(f"data={data!r} is not a folder. Give builtin, hub, or a folder.")
        names = self.other if part.startswith(OUT) else self.folders
        found = (whole / name for name in names if (whole / name).is_dir())
        return next(found, None if part.startswith(OUT) else whole)

    def _read_builtin(self, part: str) -> Part[SentencePair]:
        _check_part(part, "builtin")
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
        _check_part(part, "hub")
        if not self.hub:
            raise DataError(
                f"task={self.name!r} has no data set on the hub. Name one with options.hub, or "
                "give a folder."
            )
        rows, print_ = read_hub(self.hub, None, SPLITS[part])
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
"""What a configuration may change of a task."""

IWSLT14_FOLDERS = ("iwslt14", "iwslt14_deen", "iwslt14.tokenized.de-en")

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
        # In the form of IWSLT14's texts, so that these can be the other domain.
        TranslationTask(
            "tatoeba",
            "Tatoeba",
            ("tatoeba", "tatoeba_deen"),
            other=IWSLT14_FOLDERS,
            prepare="lowercase",
        ),
        TranslationTask("translation", "translation", ("translation",)),
    )
}
"""The tasks by name."""


def _check_part(part: str, data: str) -> None:
    if part not in NAMES:
        raise DataError(f"data={data!r} has no part {part!r}. Give one of {list(NAMES)}.")
