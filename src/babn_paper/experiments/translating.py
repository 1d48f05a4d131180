"""Translating a text with the model of a run, line by line."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

import torch

from babn.errors import ConfigError, DataError
from babn.files import replace_file
from babn.progress import NoProgress, Progress
from babn.validation import check_count
from babn_paper.data_files import numbered_lines
from babn_paper.experiments.experiment import Experiment
from babn_paper.experiments.run_folder import RunError, RunFolder
from babn_paper.experiments.stage import Subject, load_subject
from babn_paper.experiments.testing import autocast, predictor_of
from babn_paper.tasks.catalogue import find_task
from babn_paper.tasks.translation.search import Hypothesis, Search, predict_translations
from babn_paper.tasks.translation.subwords import encode_sources
from babn_paper.tasks.translation.task import TranslationTask

TOGETHER = 64
"""Sentences in a batch."""

CHUNK = 4096
"""Lines whose sentences are sorted by length together, and written before the next ones."""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """How to translate.

    Attributes:
        samples: Samples of attention; 0 for the posterior mean.
        beam: Hypotheses of the search; 0 for as many as the run was tested with.
        batch: Sentences at a time.
        seed: Decides the noise of samples; a line's noise follows from it and the line's number.
        json: Whether a line of output is an object with uncertainties and not the text alone.
    """

    samples: int = 0
    beam: int = 0
    batch: int = TOGETHER
    seed: int = 0
    json: bool = False


@dataclass(frozen=True)
class Outcome:
    """What was done.

    Attributes:
        lines: How many there were.
        empty: Lines without a sentence, which stay empty.
        cut: Lines that were longer than the model can read.
    """

    lines: int
    empty: int
    cut: int


def translate_file(
    run: str | Path,
    file: str | Path,
    out: str | Path,
    wish: Wish | None = None,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Outcome:
    """Translates every line of a file to a line of another.

    Args:
        run: The run whose model translates.
        file: UTF-8, one sentence a line, plain or `.gz`.
        out: Where translations go; it is there once all of them are.
        wish: How to translate.
        overwrite: Replace what `out` holds.
        progress: Is told of every line.
    """
    wish, source, target = wish or Wish(), Path(file), Path(out)
    if not source.is_file():
        raise DataError(f"file={str(file)!r} does not exist. Give a text file.")
    if target.exists() and not overwrite:
        raise DataError(f"{target} exists. Give another --out, or --overwrite.")
    if not target.absolute().parent.is_dir():
        raise DataError(f"The folder of {target} does not exist. Make it first.")
    subject = _subject(run, wish)
    texts = [line for _, line in numbered_lines(source)]
    translator = Translator(subject, wish, progress or NoProgress())

    def write(path: Path) -> None:
        with path.open("w", encoding="utf-8", newline="\n") as file:
            translator.write(texts, file)

    replace_file(target, write)
    return Outcome(len(texts), translator.empty, translator.cut)


class Translator:
    """Translates texts, those of similar lengths together.

    Args:
        subject: Model, task and tokenizer.
        wish: How to translate.
        progress: Is told of every text.
    """

    def __init__(self, subject: Subject, wish: Wish, progress: Progress) -> None:
        assert isinstance(subject.task, TranslationTask)
        self.subject, self.task, self.wish, self.progress = subject, subject.task, wish, progress
        self.empty = self.cut = 0

    def write(self, texts: Sequence[str], file: TextIO) -> None:
        """Writes a line for each text."""
        self.progress.begin("translating", len(texts))
        for start in range(0, len(texts), CHUNK):
            for text, found in self.translate(texts[start : start + CHUNK], start):
                print(self._line(text, found), file=file)

    def translate(
        self, texts: Sequence[str], first: int = 0
    ) -> Iterator[tuple[str, Hypothesis | None]]:
        """Each text with its translation, or without one if it is empty.

        Args:
            texts: One sentence each.
            first: The number of the first one, which chooses its noise.
        """
        prepared = [self.task.prepared(text) for text in texts]
        places = [i for i, text in enumerate(prepared) if text]
        self.empty += len(texts) - len(places)
        self.progress.step(len(texts) - len(places))
        found: dict[int, Hypothesis] = {}
        if places:
            found = self._found([prepared[i] for i in places], places, first)
        yield from ((text, found.get(i)) for i, text in enumerate(texts))

    def _found(
        self, texts: Sequence[str], places: Sequence[int], first: int
    ) -> dict[int, Hypothesis]:
        subject, search = self.subject, Search(self.task.beam, self.task.length_penalty)
        # One piece more than the model takes shows which sentences are longer.
        uncut = encode_sources(texts, subject.tokenizer, subject.max_length + 1).lengths
        self.cut += int((uncut > subject.max_length).sum())
        data = encode_sources(texts, subject.tokenizer, subject.max_length).to(subject.device)
        predictor = predictor_of(subject, "sampled" if self.wish.samples else "mean")
        found: dict[int, Hypothesis] = {}
        for rows in data.lengths.argsort(descending=True, stable=True).split(self.wish.batch):
            own = [places[i] for i in rows.tolist()]
            with torch.no_grad(), autocast(subject.experiment, subject.device):
                batch = data.batch(rows, subject.multiple)
                numbers = [first + place for place in own]
                made = predict_translations(predictor, batch, numbers, search)
            found |= dict(zip(own, made, strict=True))
            self.progress.step(len(own))
        return found

    def _line(self, text: str, found: Hypothesis | None) -> str:
        # Pieces could spell a line break, which would add a line.
        translation = " ".join(found.text.split()) if found else ""
        if not self.wish.json:
            return translation
        values = {"source": text, "translation": translation}
        more = {} if found is None else {k: v for k, v in asdict(found).items() if k != "text"}
        written = json.dumps({**values, **more}, ensure_ascii=False)
        # Some programs take these for ends of lines as well.
        return re.sub("[\x85\u2028\u2029]", lambda sign: f"\\u{ord(sign[0]):04x}", written)


def _subject(run: str | Path, wish: Wish) -> Subject:
    """The run's model, with the settings that are wished for."""
    place = RunFolder(run)
    before = place.experiment()
    if not isinstance(find_task(before.task, before.options), TranslationTask):
        raise ConfigError(f"{run} does not translate; its task is {before.task}.")
    if not place.model.is_dir():
        raise RunError(f"{run} has no model: it is not finished, or has keep_model = false.")
    check_count("batch", wish.batch)
    if wish.samples and before.rule == "softmax":
        raise ConfigError(
            f"samples={wish.samples} need attention that is random, and the rule of {run} is "
            "softmax. Leave out --samples."
        )
    options = {**before.options, **({"beam": wish.beam} if wish.beam else {})}
    changes = {"options": options, "samples": wish.samples or 1, "seed": wish.seed}
    return load_subject(Experiment.from_dict(before.to_dict() | changes), place.model)
