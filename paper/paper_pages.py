"""Tables of RESULTS.md and docs/ from the results in `paper/results`.

`python tools/write_pages.py` puts them in their places. Results of one of the paper's tables are
read from `paper/results/TABLE.json`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from attack_averages import averages_table
from choose_settings import search_table
from domain_table import CALIBRATED, CALIBRATION, LIKELIHOOD, LIKELY, domain_tables, side_by_side
from mean_over_tasks import mean_table
from result_files import load_records, load_runs
from translation_speed import table as speed_table

from babn.benchmark.results import Cost
from babn.evaluation.tables import Table
from babn_paper.attacks.attack_table import attack_table, numbers_table
from babn_paper.attacks.attack_table import circumstances as attack_circumstances
from babn_paper.experiments.experiment import Experiment
from babn_paper.experiments.grids import table_grid
from babn_paper.experiments.naming import attention_name, method_of
from babn_paper.experiments.records import Record
from babn_paper.experiments.result_pages import circumstances, main_table
from babn_paper.experiments.result_tables import NONE, NOT_RUN
from babn_paper.experiments.task_tables import visual_tables
from babn_paper.tasks.catalogue import find_task

RESULTS = Path(__file__).parent / "results"

SMALL_TASKS = [
    f"minilm-{n}" for n in ("glue", "smoothed", "noise", "combined", "dropout", "routes")
]
"""Grids over the small tasks of GLUE, which are averaged over tasks as well."""
DOMAINS = {"minilm": "MiniLM", "decomposable": "decomposable", "esim": "ESIM"}
IMAGES = ("vqa-easy", "vqa-daquar")
ATTACKS = "minilm-attacked"
SEARCHES = [f"minilm-search{suffix}" for suffix in ("", "-2", "-3", "-4", "-5")]
LENGTHS = ("domains-search", "decomposable-search", "esim-search", "esim-search-2")
PAPER = ("table1", "table2", "table4", "table5", "ablation", "efficiency")


def blocks() -> Iterator[tuple[str, str, str]]:
    """The page, the name and the text of every table."""
    yield from summaries()
    yield from details()
    yield "docs/translation.md", "speed", speeds()
    yield "docs/translation.md", "tatoeba", with_command("tatoeba", TRANSLATED)
    yield "docs/domains.md", "calibration", in_domains(CALIBRATION, CALIBRATED)
    yield "docs/domains.md", "likelihood", in_domains(LIKELIHOOD, LIKELY)
    for model in DOMAINS:
        yield "docs/domains.md", model, domains(model)
    yield "docs/attacks.md", "attacked", attacked()
    for name in IMAGES:
        yield "docs/vqa.md", name, with_command(name, ABOUT_IMAGES)
    yield "docs/paper_as_written.md", "written", written()
    for name in PAPER:
        yield "docs/reproduce.md", name, of_paper(name)
    yield "docs/reproduce.md", "table3", attack_table([], caption="").markdown()


def summaries() -> Iterator[tuple[str, str, str]]:
    """One table for each experiment."""
    yield "RESULTS.md", "small-tasks", small_tasks()
    yield "RESULTS.md", "efficiency", main_table(records_of("efficiency")).markdown()
    yield "RESULTS.md", "calibration", in_domains(CALIBRATION, CALIBRATED)
    yield "RESULTS.md", "translation", in_short(columns_of("tatoeba", TRANSLATED)).markdown()
    yield "RESULTS.md", "images", images()
    yield "RESULTS.md", "attacks", averages_table(load_runs(file_of(ATTACKS))[0]).markdown()


def details() -> Iterator[tuple[str, str, str]]:
    """Every number of every experiment."""
    for name in (*SMALL_TASKS, "minilm-large"):
        yield "docs/results/understanding.md", name, grid(name)
    for model in DOMAINS:
        yield "docs/results/domains.md", f"{model}-domains", grid(f"{model}-domains")
    yield "docs/results/translation.md", "tatoeba", grid("tatoeba")
    for name in IMAGES:
        yield "docs/results/images.md", name, grid(name)
    yield "docs/results/attacks.md", ATTACKS, attacks_in_full()
    yield "docs/results/searches.md", "minilm-search", search(SEARCHES)
    yield "docs/results/searches.md", "decomposable-noise", search(["decomposable-noise"])
    yield "docs/results/searches.md", "lengths", lengths()


def file_of(name: str) -> Path:
    """A file of results."""
    return RESULTS / f"{name}.json"


def records_of(name: str) -> list[Record]:
    """The runs of a grid."""
    return [without_idle_dropout(record) for record in load_records(file_of(name))[0]]


def without_idle_dropout(record: Record) -> Record:
    """A run without samples of a dropout rate of zero, which some runs have."""
    if record.experiment["dropout"] or not record.results:
        return record
    measures = {
        part: {mode: found for mode, found in modes.items() if mode != "dropout"}
        for part, modes in record.results["measures"].items()
    }
    return replace(record, results={**record.results, "measures": measures})


def console(*commands: str) -> str:
    """Commands as a block."""
    return "\n".join(["```console", *commands, "```"])


def captioned(table: Table) -> str:
    """A table below its caption."""
    return f"{table.caption}\n\n{table.markdown()}".strip()


def grid(name: str) -> str:
    """Every number of a grid, with the command that made it."""
    records = records_of(name)
    tables = [main_table(records), *visual_tables(records)]
    if name in SMALL_TASKS:
        tables.append(mean_table(records))
    parts = [console(load_records(file_of(name))[1]), *map(captioned, tables)]
    return "\n\n".join([*parts, *circumstances(records)])


def columns_of(name: str, columns: Mapping[str, str]) -> Table:
    """Some columns of the table of a grid under other names."""
    found = main_table(records_of(name))
    places = [list(found.columns).index(column) for column in columns]
    rows = [[row[place].replace("settings.", "") for place in places] for row in found.rows]
    return Table([*columns.values()], rows)


def in_short(table: Table) -> Table:
    """A table without the posterior mean of methods that have samples."""
    rows = [row for row in table.rows if row[0] == "softmax" or row[1] != "mean"]
    return Table(table.columns, rows)


def images() -> str:
    """Both data sets of questions about images in one table."""
    found = {"easy-VQA": "vqa-easy", "DAQUAR": "vqa-daquar"}
    tables = {title: in_short(columns_of(name, ABOUT_IMAGES)) for title, name in found.items()}
    rows = [[title, *row] for title, table in tables.items() for row in table.rows]
    return Table(["data", *ABOUT_IMAGES.values()], rows).markdown()


def with_command(name: str, columns: Mapping[str, str]) -> str:
    """Some columns of the table of a grid, its command, and what it was run with."""
    records, command = load_records(file_of(name))
    shown = columns_of(name, columns).markdown().strip()
    return "\n\n".join([f"`{command}`:", shown, *circumstances(records)])


def written() -> str:
    """The method as published beside the default on each task that was run, under a heading."""
    parts = [
        f"### {title}\n\n{trained_as(name, about)}\n\n{with_command(name, columns)}"
        for name, (title, about, columns) in WRITTEN.items()
        if file_of(name).exists()
    ]
    return "\n\n".join(parts) or "No run is committed."


def trained_as(name: str, about: str) -> str:
    """A description of a grid's training, completed with the fields of its runs."""
    return about.format(**records_of(name)[0].experiment)


TRANSLATED = {
    "attention": "attention",
    "prediction": "prediction",
    "BLEU": "BLEU",
    "BLEU, other domain": "BLEU, IWSLT14",
    "chrF ~ NLL": "chrF ~ NLL",
    "chrF ~ mutual information": "chrF ~ MI",
}
ABOUT_IMAGES = {
    "attention": "attention",
    "prediction": "prediction",
    **{name: name for name in ("accuracy", "PAvPU", "ECE", "NLL", "error AUROC")},
}
"""Columns of a table, and their names in the shorter one."""

SHOWN = {name: name for name in ("attention", "prediction")}
IN_DOMAINS = {**SHOWN, **{name: name for name in ("accuracy", "ECE", "NLL", "AURC")}}
WRITTEN: dict[str, tuple[str, str, dict[str, str]]] = {
    "written-easy-vqa": (
        "easy-VQA",
        "A small MCAN from random weights, {epochs:g} epochs. Original / noisy images:",
        {**ABOUT_IMAGES, "seeds": "seeds"},
    ),
    "written-tatoeba": (
        "Tatoeba",
        "The LSTM with its parallel decoder from random weights, {epochs:g} epochs, tested on "
        "the first 2000 sentences of the test set:",
        {**SHOWN, **{n: n for n in ("BLEU", "chrF", "chrF ~ NLL", "seeds")}},
    ),
    "written-paraphrase": (
        "QQP to TwitterPPDB",
        "Decomposable attention from random weights, epochs of 34,000 pairs: {epochs:g}. QQP / "
        "TwitterPPDB:",
        {**IN_DOMAINS, "seeds": "seeds"},
    ),
    "written-nli": (
        "SNLI to MNLI",
        "A pretrained MiniLM, epochs of 100,000 pairs: {epochs:g}. SNLI / MNLI:",
        {**IN_DOMAINS, "OOD AUROC, entropy": "OOD AUROC", "seeds": "seeds"},
    ),
}
"""Grids of the method as published: heading, what they train, and the columns that are shown."""

SMALL = {
    ("minilm-glue", "little noise"): (
        "softmax, mean",
        "softmax, ensemble",
        "BAM, sampled",
        "BABN, sampled",
    ),
    ("minilm-combined", "label smoothing 0.1, longer training"): (
        "softmax, mean",
        "softmax, ensemble",
        "BAM, sampled, settings.k=1.5",
        "BABN, sampled, settings.rho=1.5",
    ),
    ("minilm-dropout", "dropout 0.1"): (
        "softmax, mean",
        "softmax, MC dropout",
        "softmax, ensemble",
        "BAM, sampled + dropout",
        "BABN, sampled + dropout",
    ),
}
"""Grids, how they train, and the rows that are shown of each."""


def small_tasks() -> str:
    """Means over the small tasks."""
    lines = []
    for (name, training), wanted in SMALL.items():
        rows = {row[0]: row[1:] for row in mean_table(records_of(name)).rows}
        lines += [[training, each.replace("settings.", ""), *rows[each]] for each in wanted]
    return Table(["training", "attention", "score", "NLL", "ECE"], lines).markdown()


def in_domains(column: tuple[str, str, str, bool], names: Sequence[str]) -> str:
    """One measure of all models in two domains."""
    results = {name: records_of(f"{model}-domains") for model, name in DOMAINS.items()}
    return side_by_side(results, column, names).markdown()


def domains(model: str) -> str:
    """All measures of a model in two domains."""
    records = records_of(f"{model}-domains")
    tables = [table.markdown().strip() for table in domain_tables(records)]
    return "\n\n".join([*tables, *circumstances(records)])


def attacked() -> str:
    """Failed attacks in the mean over tasks."""
    found, _ = load_runs(file_of(ATTACKS))
    known = "\n".join(f"- {line}" for line in attack_circumstances(found))
    return f"{averages_table(found).markdown()}\n{known}"


def attacks_in_full() -> str:
    """Every number of every attack."""
    found, command = load_runs(file_of(ATTACKS))
    tables = [captioned(attack_table(found)), captioned(numbers_table(found))]
    return "\n\n".join([console(command), *tables])


def search(names: Sequence[str]) -> str:
    """The settings that searches tried."""
    records, commands = searched(names)
    parts = [console(*commands), search_table(records).markdown().strip()]
    return "\n\n".join([*parts, *circumstances(records)])


def searched(names: Sequence[str]) -> tuple[list[Record], list[str]]:
    """The runs of several grids and their commands."""
    found = [load_records(file_of(name)) for name in names]
    return [record for own, _ in found for record in own], [command for _, command in found]


def lengths() -> str:
    """Softmax in its own domain by length of training; the lowest NLL is bold."""
    records, commands = searched(LENGTHS)
    rows: list[list[str]] = []
    best: dict[tuple[str, str], tuple[float, int]] = {}
    for place, record in enumerate(each for each in records if each.results):
        fields, found = record.experiment, record.of("dev", "mean")
        numbers = [f"{100 * found['accuracy']:.1f}", f"{found['NLL']:.3f}"]
        trained = [f"{fields['epochs']:g}", f"{fields['learning_rate']:g}"]
        rows.append([fields["model"], record.title, *trained, *numbers])
        cell = fields["model"], fields["task"]
        best[cell] = min(best.get(cell, (found["NLL"], place)), (found["NLL"], place))
    head = ["model", "task", "epochs", "learning rate", "accuracy", "NLL"]
    table = Table(head, rows, best=frozenset((place, 5) for _, place in best.values()))
    return "\n\n".join([console(*commands), table.markdown().strip(), *circumstances(records)])


SPEEDS = {
    "training": "A training step",
    "mean": "Beam search, posterior mean",
    "sampled": "Beam search, sampled",
}


def speeds() -> str:
    """Cost of translation with each attention method."""
    found = json.loads(file_of("translation_speed").read_text(encoding="utf-8"))
    settings = found["settings"]
    batch, length = int(settings["batch"]), int(settings["length"])
    parts = [
        f"{found['machine']['gpu']}, torch {found['versions']['torch']}, {settings['precision']}; "
        f"{batch} sentences of up to {length} words."
    ]
    for kind, costs in found["costs"].items():
        count = found["target_words"] if kind == "training" else batch * length
        own = {method: Cost(**cost) for method, cost in costs.items()}
        shown = speed_table(own, found["parameters"], count).markdown().strip()
        parts += [f"{SPEEDS[kind]}:", shown]
    return "\n\n".join(parts)


def of_paper(name: str) -> str:
    """A table of the paper: its numbers, and ours where the repository has some."""
    if not file_of(name).exists():
        return papers_numbers(name).markdown()
    records, command = load_records(file_of(name))
    records += not_run(name, records)
    shown = main_table(records).markdown().strip()
    return "\n\n".join([f"Ours: `{command}`", shown, *circumstances(records)])


def not_run(name: str, records: Sequence[Record]) -> list[Record]:
    """The cells of presets that results from before there were presets do not have."""
    known = {method_of(record.experiment) for record in records}
    experiments = [
        Experiment.from_dict(cell.values).to_dict() for cell in table_grid(name, [0]).cells
    ]
    return [
        Record(f"{name}-{each['preset']}", each, {}, {})
        for each in experiments
        if each["preset"] and method_of(each) not in known
    ]


def papers_numbers(name: str) -> Table:
    """A table of the paper that was not run."""
    cells = [cell.values for cell in table_grid(name, [0]).cells]
    measures = list(dict.fromkeys(measure for cell in cells for measure in cell.get("paper", {})))
    rows = [
        [
            find_task(cell["task"]).title,
            str(cell["model"]).rpartition("/")[2],
            attention_name(method_of(cell)) + changed(cell),
            *(cell.get("paper", {}).get(measure, NONE) for measure in measures),
            NOT_RUN,
        ]
        for cell in cells
    ]
    return Table(["task", "model", "attention", *measures, "ours"], rows)


def changed(cell: Mapping[str, Any]) -> str:
    """Parts of the upward path that the ablation switches off, and label smoothing."""
    off = [
        f", {name} 0"
        for name, value in cell.get("settings", {}).items()
        if value == 0 and name in ("rho", "sigma")
    ]
    smoothing = cell.get("label_smoothing", 0)
    return "".join([*off, f", label smoothing {smoothing}" if smoothing else ""])
