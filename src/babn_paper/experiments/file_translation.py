"""Translates text files line by line with the model of a run."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

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
from babn_paper.tasks.task import Predictor
from babn_paper.tasks.translation.predictions import Hypothesis, predict_translations
from babn_paper.tasks.translation.subwords import encode_sources
from babn_paper.tasks.translation.task import TranslationTask

TOGETHER = 64
"""Default number of sentences in a batch."""

CHUNK = 4096
"""Lines that are sorted by length, translated and written together."""


@dataclass
class Outcome:
    """Counts of a translation.

    Attributes:
        lines: Number of lines.
        empty: Lines without text, which stay empty.
        cut: Lines that were truncated to the model's maximum length.
    """

    lines: int
    empty: int = 0
    cut: int = 0


def translate_file(
    run: str | Path,
    file: str | Path,
    out: str | Path,
    *,
    samples: int = 0,
    beam: int = 0,
    batch: int = TOGETHER,
    seed: int = 0,
    as_json: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Outcome:
    """Translates every line of a file.

    Args:
        run: Folder of the run whose model translates.
        file: UTF-8 text with one sentence per line, plain or `.gz`.
        out: Output file, which appears when all lines are translated.
        samples: Samples of attention; 0 for the posterior mean.
        beam: Beam size; 0 for the one that the run was tested with.
        batch: Sentences in a batch.
        seed: Seed of the samples; the noise of a line depends on it and on the line's number.
        as_json: Whether each output line is a JSON object with uncertainties instead of plain text.
        overwrite: Replace an existing output file.
        progress: Receives the number of finished lines.
    """
    source, target, progress = Path(file), Path(out), progress or Progress()
    if not source.is_file():
        raise DataError(f"file={str(file)!r} does not exist. Give a text file.")
    if target.exists() and not overwrite:
        raise DataError(f"{target} exists. Give another --out, or --overwrite.")
    if not target.absolute().parent.is_dir():
        raise DataError(f"The folder of {target} does not exist. Make it first.")
    check_count("batch", batch)
    task_model = _load_model(run, samples, beam, seed)
    predictor = predictor_of(task_model, "sampled" if samples else "mean")
    texts = [line for _, line in numbered_lines(source)]
    outcome = Outcome(len(texts))
    progress.begin("translating", len(texts))

    def write(path: Path) -> None:
        with path.open("w", encoding="utf-8", newline="\n") as lines:
            for first in range(0, len(texts), CHUNK):
                chunk = texts[first : first + CHUNK]
                found = _translate(task_model, predictor, chunk, first, batch, outcome, progress)
                for place, text in enumerate(chunk):
                    print(_line(text, found.get(place), as_json), file=lines)

    replace_file(target, write)
    return outcome


def _translate(
    task_model: TaskModel,
    predictor: Predictor,
    texts: Sequence[str],
    first: int,
    batch_size: int,
    outcome: Outcome,
    progress: Progress,
) -> dict[int, Hypothesis]:
    """The translations of texts that are not empty, by place; texts of similar lengths together.

    Args:
        task_model: Model, task and tokenizer.
        predictor: The model and the settings of its predictions.
        texts: One sentence each.
        first: Line number of the first text; line numbers determine the noise.
        batch_size: Sentences in a batch.
        outcome: Counts empty and truncated texts.
        progress: Receives the number of finished texts.
    """
    task, tokenizer, longest = task_model.task, task_model.tokenizer, task_model.max_length
    assert isinstance(task, TranslationTask)
    prepared = {place: task.prepared(text) for place, text in enumerate(texts)}
    places = [place for place, text in prepared.items() if text]
    outcome.empty += len(texts) - len(places)
    progress.step(len(texts) - len(places))
    if not places:
        return {}
    sources = [prepared[place] for place in places]
    # One token more than the maximum length shows which sentences are longer.
    outcome.cut += int((encode_sources(sources, tokenizer, longest + 1).lengths > longest).sum())
    data = encode_sources(sources, tokenizer, longest).to(task_model.device)
    found: dict[int, Hypothesis] = {}
    for rows in data.lengths.argsort(descending=True, stable=True).split(batch_size):
        own = [places[i] for i in rows.tolist()]
        numbers = [first + place for place in own]
        with torch.no_grad(), autocast(task_model.experiment, task_model.device):
            batch = data.batch(rows, task_model.multiple)
            made = predict_translations(predictor, batch, numbers, task.beam, task.length_penalty)
        found |= dict(zip(own, made, strict=True))
        progress.step(len(own))
    return found


def _line(text: str, found: Hypothesis | None, as_json: bool) -> str:
    # Subwords could spell a line break, which would add a line.
    translation = " ".join(found.text.split()) if found else ""
    if not as_json:
        return translation
    values = {"source": text, "translation": translation}
    more = {} if found is None else {k: v for k, v in asdict(found).items() if k != "text"}
    written = json.dumps({**values, **more}, ensure_ascii=False)
    # Some programs treat these characters as line ends.
    return re.sub("[\x85\u2028\u2029]", lambda sign: f"\\u{ord(sign[0]):04x}", written)


def _load_model(run: str | Path, samples: int, beam: int, seed: int) -> TaskModel:
    """Loads the run's model with the settings of the translation."""
    place = RunFolder(run)
    before = place.experiment()
    if not isinstance(find_task(before.task, before.options), TranslationTask):
        raise ConfigError(f"{run} does not translate; its task is {before.task}.")
    model = place.trained_model()
    if samples and before.method == "softmax":
        raise ConfigError(
            f"samples={samples} needs random attention, but {run} has softmax attention. Leave out "
            "--samples."
        )
    options = {**before.options, **({"beam": beam} if beam else {})}
    changes = {"options": options, "samples": samples or 1, "seed": seed}
    return load_task_model(Experiment.from_dict(before.to_dict() | changes), model)
