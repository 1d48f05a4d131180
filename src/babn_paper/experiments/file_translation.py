"""Translates text files line by line with the model of a run."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

import torch

from babn.errors import ConfigError, DataError
from babn.files import replace_file
from babn.progress import Progress
from babn.validation import check_count
from babn_paper.data_files import numbered_lines
from babn_paper.experiments.evaluation import autocast, predictor_of
from babn_paper.experiments.experiment import Experiment
from babn_paper.experiments.run_folder import RunFolder
from babn_paper.experiments.training_state import TaskModel, load_task_model
from babn_paper.tasks.catalogue import find_task
from babn_paper.tasks.translation.predictions import Hypothesis, predict_translations
from babn_paper.tasks.translation.subwords import encode_sources
from babn_paper.tasks.translation.task import TranslationTask

TOGETHER = 64
"""Default number of sentences in a batch."""

CHUNK = 4096
"""Lines that are sorted by length, translated and written together."""


@dataclass(frozen=True, kw_only=True)
class TranslationSettings:
    """Settings of a translation.

    Attributes:
        samples: Samples of attention; 0 for the posterior mean.
        beam: Beam size; 0 for the one that the run was tested with.
        batch: Sentences in a batch.
        seed: Seed of the samples; the noise of a line depends on it and on the line's number.
        json: Whether each output line is a JSON object with uncertainties instead of plain text.
    """

    samples: int = 0
    beam: int = 0
    batch: int = TOGETHER
    seed: int = 0
    json: bool = False


@dataclass(frozen=True)
class Outcome:
    """Counts of a finished translation.

    Attributes:
        lines: Number of lines.
        empty: Lines without text, which stay empty.
        cut: Lines that were truncated to the model's maximum length.
    """

    lines: int
    empty: int
    cut: int


def translate_file(
    run: str | Path,
    file: str | Path,
    out: str | Path,
    settings: TranslationSettings | None = None,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Outcome:
    """Translates every line of a file.

    Args:
        run: Folder of the run whose model translates.
        file: UTF-8 text with one sentence per line, plain or `.gz`.
        out: Output file, which appears when all lines are translated.
        settings: Settings of the translation.
        overwrite: Replace an existing output file.
        progress: Receives the number of finished lines.
    """
    settings, source, target = settings or TranslationSettings(), Path(file), Path(out)
    if not source.is_file():
        raise DataError(f"file={str(file)!r} does not exist. Give a text file.")
    if target.exists() and not overwrite:
        raise DataError(f"{target} exists. Give another --out, or --overwrite.")
    if not target.absolute().parent.is_dir():
        raise DataError(f"The folder of {target} does not exist. Make it first.")
    task_model = _load_model(run, settings)
    texts = [line for _, line in numbered_lines(source)]
    translator = Translator(task_model, settings, progress or Progress())

    def write(path: Path) -> None:
        with path.open("w", encoding="utf-8", newline="\n") as file:
            translator.write(texts, file)

    replace_file(target, write)
    return Outcome(len(texts), translator.empty, translator.cut)


class Translator:
    """Translates texts in batches of similar lengths.

    Args:
        task_model: Model, task and tokenizer.
        settings: Settings of the translation.
        progress: Receives the number of finished texts.
    """

    def __init__(
        self, task_model: TaskModel, settings: TranslationSettings, progress: Progress
    ) -> None:
        assert isinstance(task_model.task, TranslationTask)
        self.task_model, self.task = task_model, task_model.task
        self.settings, self.progress = settings, progress
        self.empty = self.cut = 0

    def write(self, texts: Sequence[str], file: TextIO) -> None:
        """Writes an output line for each text."""
        self.progress.begin("translating", len(texts))
        for start in range(0, len(texts), CHUNK):
            for text, found in self.translate(texts[start : start + CHUNK], start):
                print(self._line(text, found), file=file)

    def translate(
        self, texts: Sequence[str], first: int = 0
    ) -> Iterator[tuple[str, Hypothesis | None]]:
        """Each text with its translation, or `None` if it is empty.

        Args:
            texts: One sentence each.
            first: Line number of the first text, which determines its noise.
        """
        prepared = [self.task.prepared(text) for text in texts]
        places = [i for i, text in enumerate(prepared) if text]
        self.empty += len(texts) - len(places)
        self.progress.step(len(texts) - len(places))
        found: dict[int, Hypothesis] = {}
        if places:
            found = self._search([prepared[i] for i in places], places, first)
        yield from ((text, found.get(i)) for i, text in enumerate(texts))

    def _search(
        self, texts: Sequence[str], places: Sequence[int], first: int
    ) -> dict[int, Hypothesis]:
        task_model, beam = self.task_model, (self.task.beam, self.task.length_penalty)
        # One token more than the maximum length shows which sentences are longer.
        uncut = encode_sources(texts, task_model.tokenizer, task_model.max_length + 1).lengths
        self.cut += int((uncut > task_model.max_length).sum())
        data = encode_sources(texts, task_model.tokenizer, task_model.max_length).to(
            task_model.device
        )
        prediction = predictor_of(task_model, "sampled" if self.settings.samples else "mean")
        found: dict[int, Hypothesis] = {}
        for rows in data.lengths.argsort(descending=True, stable=True).split(self.settings.batch):
            own = [places[i] for i in rows.tolist()]
            with torch.no_grad(), autocast(task_model.experiment, task_model.device):
                batch = data.batch(rows, task_model.multiple)
                numbers = [first + place for place in own]
                made = predict_translations(prediction, batch, numbers, *beam)
            found |= dict(zip(own, made, strict=True))
            self.progress.step(len(own))
        return found

    def _line(self, text: str, found: Hypothesis | None) -> str:
        # Subwords could spell a line break, which would add a line.
        translation = " ".join(found.text.split()) if found else ""
        if not self.settings.json:
            return translation
        values = {"source": text, "translation": translation}
        more = {} if found is None else {k: v for k, v in asdict(found).items() if k != "text"}
        written = json.dumps({**values, **more}, ensure_ascii=False)
        # Some programs treat these characters as line ends.
        return re.sub("[\x85\u2028\u2029]", lambda sign: f"\\u{ord(sign[0]):04x}", written)


def _load_model(run: str | Path, settings: TranslationSettings) -> TaskModel:
    """Loads the run's model with the settings of the translation."""
    place = RunFolder(run)
    before = place.experiment()
    if not isinstance(find_task(before.task, before.options), TranslationTask):
        raise ConfigError(f"{run} does not translate; its task is {before.task}.")
    model = place.trained_model()
    check_count("batch", settings.batch)
    if settings.samples and before.method == "softmax":
        raise ConfigError(
            f"samples={settings.samples} needs random attention, but {run} has softmax attention. "
            "Leave out --samples."
        )
    options = {**before.options, **({"beam": settings.beam} if settings.beam else {})}
    changes = {"options": options, "samples": settings.samples or 1, "seed": settings.seed}
    return load_task_model(Experiment.from_dict(before.to_dict() | changes), model)
