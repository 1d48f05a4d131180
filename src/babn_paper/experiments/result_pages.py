"""Pages of results: of one grid in Markdown, LaTeX, CSV and JSON; of all tables in Markdown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os.path import relpath
from pathlib import Path
from typing import Any

from babn import BeliefConfig
from babn.evaluation.tables import Table
from babn.files import replace_text
from babn_paper.experiments.naming import method_of, preset_note
from babn_paper.experiments.records import Record, save_records
from babn_paper.experiments.result_tables import efficiency_table, results_table
from babn_paper.experiments.task_tables import (
    layout_of,
    paired_table,
    translation_table,
    visual_tables,
)
from babn_paper.tasks.catalogue import find_task
from babn_paper.tasks.translation.task import TranslationTask

PAGE = "RESULTS.md"

EXPLANATION = """\
Mean ± standard deviation over seeds; the best of a task is bold. *mean* predicts with attention
weights at their posterior means, *sampled* averages over samples of attention. Scores and ECE
(10 equal bins) are percentages. *+ TS* is after temperature scaling; the temperature for each tenth
of the examples is fitted on the other nine tenths.
"""


def write_results(records: Sequence[Record], folder: Path, title: str, command: str) -> Path:
    """Writes `results.json`, tables and `RESULTS.md` to a folder and returns the page's path."""
    save_records(records, folder / "results.json", command)
    return write_table(main_table(records, title), page(records, title, command), folder)


def write_table(table: Table, page: str, folder: Path) -> Path:
    """Writes a page, and its table as LaTeX and CSV; returns the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    replace_text(folder / "results.tex", table.latex())
    replace_text(folder / "results.csv", table.csv())
    replace_text(folder / PAGE, page)
    return folder / PAGE


def page(records: Sequence[Record], title: str, command: str) -> str:
    """The results of a grid in Markdown, with the command and the circumstances of the runs."""
    table, costs = main_table(records), efficiency_table(records)
    parts = [f"## {title}\n", f"```console\n{command}\n```\n"]
    if _translates(records):  # has its own explanation and columns of costs
        lines = [f"{line}\n" for line in circumstances(records)]
        return "\n".join([*parts, f"{table.caption}\n", table.markdown(), *lines])
    if table != costs:
        parts += [EXPLANATION, f"{table.caption}\n"] if table.caption else [EXPLANATION]
    parts.append(table.markdown())
    for further in visual_tables(records):
        parts += [f"{further.caption}\n", further.markdown()]
    if table != costs and len({record.experiment["task"] for record in records}) == 1:
        parts.append(costs.markdown())  # steps of different tasks are not comparable
    parts += [f"{line}\n" for line in circumstances(records)]
    return "\n".join(parts)


def main_table(records: Sequence[Record], caption: str = "") -> Table:
    """The main table of a grid: of translation, of costs, of two parts, or of scores."""
    if _translates(records):
        return translation_table(records, caption)
    printed = [r.experiment["paper"] for r in _single(records) if r.experiment["paper"]]
    if printed and all("s/step" in each for each in printed):
        return efficiency_table(records, caption)
    layout = layout_of(records)
    if layout is None:
        return results_table(records, caption)
    return paired_table(records, layout, caption)


def _translates(records: Sequence[Record]) -> bool:
    tasks = {record.experiment["task"] for record in records}
    return any(isinstance(find_task(task), TranslationTask) for task in tasks)


def _single(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record.experiment["method"] != "ensemble"]


def circumstances(records: Sequence[Record]) -> list[str]:
    """Models, seeds, data, machines and versions of the runs, in sentences."""
    single = _single(records)
    done = [record for record in single if record.results]
    methods = [method_of(record.experiment) for record in single]
    presets = list(filter(None, [f"{preset_note(methods)}{_settings_of_pairs(single)}"]))
    if not done:
        return [*presets, "Nothing was run."]
    machines = {machine_of(record.environment) for record in done}
    versions = {versions_of(record.environment) for record in done}
    dates = sorted({str(record.environment.get("started", ""))[:10] for record in done})
    days = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    seeds = sorted({record.experiment["seed"] for record in done})
    models = sorted({record.experiment["model"] for record in done})
    return [
        *presets,
        f"Models: {', '.join(Path(model).name for model in models)}. "
        f"Seeds: {', '.join(map(str, seeds))}. "
        f"{len(done)} of {len(single)} runs, {days}.",
        f"Trained on: {'; '.join(dict.fromkeys(map(_data, done)))}.",
        f"Machine: {'; '.join(sorted(machines))}. Versions: {'; '.join(sorted(versions))}.",
    ]


def _settings_of_pairs(records: Sequence[Record]) -> str:
    """The settings of noise over pairs that the rows of a table leave out, in a sentence."""
    for experiment in (record.experiment for record in records):
        if method_of(experiment) == "belief":
            config = BeliefConfig.pairs(**experiment.get("settings", {}))
            return (
                f" Unless a row says otherwise, rho is {config.rho:g} and the weight of the KL, a "
                f"mean over pairs, {config.kl_weight:g}."
            )
    return ""


def _data(record: Record) -> str:
    """Task and training data of a run."""
    origin = str(record.environment.get("training_data", {}).get("origin", "unknown"))
    return f"{record.experiment['task']} from {'/'.join(Path(origin).parts[-2:])}"


def machine_of(environment: Mapping[str, Any]) -> str:
    """The GPU of a run, or its processor."""
    machine = environment.get("machine", {})
    threads = machine.get("threads")
    cores = f"{threads} thread{'' if threads == 1 else 's'} of {machine.get('processor')}"
    return machine.get("gpu") or cores


def versions_of(
    environment: Mapping[str, Any], names: Sequence[str] = ("torch", "transformers")
) -> str:
    """Versions of some packages in a run."""
    found = environment.get("versions", {})
    return ", ".join(f"{name} {found[name]}" for name in names if name in found)


TITLE = "The paper's tables"

QUICK = (
    "These runs are a smoke test: tiny models, a few steps, the small data in the package. They "
    "show that every table can be produced, not which attention is better; the paper's numbers "
    "stand beside them for orientation only."
)


@dataclass(frozen=True)
class Section:
    """One table or figure of the report.

    Attributes:
        title: Its heading.
        command: The command that makes it alone.
        state: How much of it is done, or why it is missing.
        table: The table, if it has one.
        notes: Paragraphs below the table.
        pictures: PNG files below the table.
    """

    title: str
    command: str
    state: str
    table: Table | None = None
    notes: Sequence[str] = ()
    pictures: Sequence[Path] = ()

    def failed(self, reason: str) -> "Section":
        """The section with an error in its state."""
        return replace(self, state=f"{self.state}; failed: {reason}")


def write_report(sections: Sequence[Section], folder: Path, command: str, quick: bool) -> Path:
    """Writes the report of all tables to a folder and returns the path of its page."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = [f"# {TITLE}", f"```console\n{command}\n```", *([QUICK] if quick else [])]
    states = Table(["table", "state"], [[each.title, each.state] for each in sections])
    parts += [EXPLANATION.strip(), states.markdown().strip()]
    for each in sections:
        parts += [f"## {each.title}", f"```console\n{each.command}\n```", f"State: {each.state}"]
        if each.table is not None:
            parts += [*filter(None, [each.table.caption]), each.table.markdown().strip()]
        parts += [*each.notes, *(f"![]({relpath(file, folder)})" for file in each.pictures)]
    replace_text(folder / PAGE, "\n\n".join(parts) + "\n")
    return folder / PAGE
