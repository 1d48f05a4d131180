"""Results of many runs, collected in one file."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from babn.errors import FormatError
from babn.files import parse_json
from babn_paper.experiments.engines import Job
from babn_paper.experiments.evaluation import measure
from babn_paper.experiments.experiment import current_names
from babn_paper.experiments.run_folder import RunFolder, with_nan, write_json
from babn_paper.tasks.catalogue import find_task
from babn_paper.tasks.task import Predictions

FORMAT = 1


@dataclass(frozen=True)
class Record:
    """One run: its experiment, and its results if it is finished.

    Attributes:
        label: The grid cell of the run; runs that differ only in their seed share it.
        experiment: Fields of the experiment.
        results: The results; empty if the run is not finished.
        environment: Versions, machine and git state.
    """

    label: str
    experiment: dict[str, Any]
    results: dict[str, Any]
    environment: dict[str, Any]

    def __post_init__(self) -> None:
        """Accepts fields of experiments by their former names."""
        object.__setattr__(self, "experiment", current_names(self.experiment))

    @property
    def measures(self) -> dict[str, dict[str, float]]:
        """Measures by mode, for the first test part."""
        return next(iter(self.results.get("measures", {}).values()), {})

    @property
    def title(self) -> str:
        """The title of the task, or of the data that stand in for it."""
        origin = self.environment.get("training_data", {}).get("origin", "")
        return find_task(self.experiment["task"]).title_of(origin)

    def of(self, part: str, mode: str) -> dict[str, float]:
        """All measures of one part; empty if the run has none."""
        found: dict[str, float] = self.results.get("measures", {}).get(part, {}).get(mode, {})
        return found


def collect(jobs: Sequence[Job]) -> list[Record]:
    """Records of all runs, and of ensembles of the softmax models over seeds."""
    records: list[Record] = []
    for _, group in groupby(jobs, key=lambda job: job.folder.parent):
        of_cell = list(group)
        records += [_record(job) for job in of_cell]
        if of_cell[0].experiment.method == "softmax":
            records += _ensemble(of_cell)
    return records


def _ensemble(jobs: Sequence[Job]) -> list[Record]:
    """The ensemble of a cell's finished runs, if there are several with saved predictions."""
    done = [job for job in jobs if RunFolder(job.folder).state == "done"]
    if len(done) < 2 or not all(RunFolder(job.folder).predictions.is_dir() for job in done):
        return []
    task = find_task(done[0].experiment.task, done[0].experiment.options)
    found: dict[tuple[str, str], Predictions] = {}
    for part in RunFolder(done[0].folder).read_results()["measures"]:
        first, *others = [
            task.load_predictions(RunFolder(job.folder).predictions / f"{part}-mean")
            for job in done
        ]
        joined = first.ensembled(others)
        if joined is None:
            return []
        found[part, "sampled"] = joined
    record = _record(done[0])
    experiment = {**record.experiment, "method": "ensemble", "paper": {}}
    results = {**record.results, "members": len(done), "measures": measure(task, found)}
    label = record.label.replace("-softmax", "-ensemble")
    return [Record(label, experiment, results, record.environment)]


def _record(job: Job) -> Record:
    folder, label = RunFolder(job.folder), job.folder.parent.name
    if folder.state != "done":
        return Record(label, job.experiment.to_dict(), {}, {})
    results, environment = folder.read_results(), folder.read_environment()
    return Record(label, folder.experiment().to_dict(), results, environment)


def save_records(records: Sequence[Record], path: Path, command: str) -> None:
    """Writes records and the command that made them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(
        path, {"format": FORMAT, "command": command, "runs": [asdict(each) for each in records]}
    )


def load_records(path: Path) -> tuple[list[Record], str]:
    """Reads records and the command that made them."""
    try:
        found = parse_json(path.read_text())
        if found["format"] != FORMAT:
            raise FormatError(f"{path} has format {found['format']}; this babn reads {FORMAT}.")
        runs = [Record(**each) for each in found["runs"]]
        return [replace(run, results=with_nan(run.results)) for run in runs], found["command"]
    except FormatError:
        raise
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(f"{path} cannot be read: {error!r}.") from error
