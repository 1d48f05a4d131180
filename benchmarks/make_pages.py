"""Writes what the documentation quotes from committed results: python benchmarks/make_pages.py.

`docs/reproduce.md` is written whole; `README.md`, `docs/kernels.md`, `docs/scale.md`,
`docs/translation.md`, `docs/domains.md`, `docs/attacks.md` and `docs/vqa.md` get figures between
their marks. Results of a table are read from `benchmarks/results/TABLE.json`, a copy of the
`results.json` that `babn reproduce` leaves in the table's folder.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attack_averages import averages_table
from domain_table import (
    CALIBRATED,
    CALIBRATION,
    LIKELIHOOD,
    LIKELY,
    domain_tables,
    side_by_side,
)
from floors import floors
from mean_over_tasks import mean_table
from translation_speed import table as speed_table

from babn.benchmark.results import TITLES, rows_of, shown, table
from babn.benchmark.steps import Size, model_config
from babn.benchmark.suite import Row
from babn.benchmark.timing import Cost
from babn.estimate.estimates import Estimate, estimates
from babn.estimate.shapes import shape_of
from babn.estimate.workload import Workload
from babn.evaluation.tables import Table
from babn_paper.attacks.attack_table import attack_table
from babn_paper.attacks.attack_table import circumstances as attack_circumstances
from babn_paper.cli._all_tables import TITLES as TABLES
from babn_paper.cli._tables import ATTACKS, FIGURE
from babn_paper.experiments.grids import table_grid
from babn_paper.experiments.naming import rule_name
from babn_paper.experiments.paired_tables import DOMAINS
from babn_paper.experiments.records import load_records
from babn_paper.experiments.result_tables import NONE, NOT_RUN
from babn_paper.experiments.results_page import circumstances, main_table
from babn_paper.tasks.catalogue import find_task

ROOT = Path(__file__).parents[1]
RESULTS, DOCS = ROOT / "benchmarks" / "results", ROOT / "docs"

HEAD = """# Reproduce the paper

Every table of the paper is one command. `--quick` runs all of its cells with tiny models on built-
in data, to see that everything works; without it the paper's models, data and settings are used.
What is done is left alone and what was interrupted goes on.

```console
babn reproduce all --quick                # all in miniature; report: runs/quick/all/index.html
babn reproduce table1 --seeds 5 --jobs 4  # one table for real
babn reproduce all --data DIR --jobs 4    # all of them: days on one GPU
babn reproduce all --show                 # the report of what has been run
```

Below, the paper's numbers stand beside ours where the repository holds results of the same models
and data; all else says *not run*. Results with other models are on the [results page](results.md):
a pretrained MiniLM on the tasks of Tables 1, 2 and 3, and other data for Tables 4 and 5. Formats of
data and all options are in [Experiments](experiments.md). `python benchmarks/make_pages.py` writes
this page.
"""

NO_ALBERT = "Ours: not run with ALBERT; for MiniLM see [Attacks](attacks.md#what-came-of-it)."

REMARKS = {
    "table1": "ALBERT-base, fine-tuned; 5 seeds. See [Experiments](experiments.md).",
    "table2": f"Trained in one domain, tested in it (test) and in another (out). {DOMAINS.sources}",
    ATTACKS: "Percentages of attacks that fail; more is better. See [Attacks](attacks.md).",
    "table4": "German to English by an LSTM with attention. See [Translation](translation.md).",
    "table5": "Original (test) and noisy images. See [Questions about images](vqa.md).",
    "ablation": "The weights of the upward path in shape and scale, set to zero in turn.",
    "efficiency": "ALBERT-base at 512 tokens, batches of 32. See [Kernels](kernels.md).",
    FIGURE: "The figure is drawn from a model of Table 5: the surest and the least sure answer.",
}


def main() -> None:
    """Writes the pages."""
    (DOCS / "reproduce.md").write_text(reproduce_page(), encoding="utf-8")
    for file, mark, text in blocks():
        put(ROOT / file, mark, text)


def blocks() -> Iterator[tuple[str, str, str]]:
    """What stands between marks: the page, the mark, and the text."""
    yield "README.md", "gains", gains()
    yield "README.md", "costs", in_short()
    yield "docs/kernels.md", "bench", costs()
    yield "docs/kernels.md", "cpu", costs("bench-cpu")
    yield "docs/kernels.md", "floors", least()
    yield "docs/kernels.md", "routes", cheaper()
    yield "docs/scale.md", "compared", compared()
    yield "docs/translation.md", "speed", speeds()
    yield "docs/translation.md", "tatoeba", translations()
    yield "docs/domains.md", "calibration", in_domains(CALIBRATION, CALIBRATED)
    yield "docs/domains.md", "likelihood", in_domains(LIKELIHOOD, LIKELY)
    for model in DOMAIN_MODELS:
        yield "docs/domains.md", model, domains(model)
    yield "docs/attacks.md", "attacked", attacked()
    yield "docs/vqa.md", "easy", images("vqa-easy")
    yield "docs/vqa.md", "daquar", images("vqa-daquar")


def put(file: Path, mark: str, text: str) -> None:
    """Puts text between the marks of a page."""
    whole = re.sub(
        f"<!-- {mark} -->.*?<!-- /{mark} -->",
        lambda _: f"<!-- {mark} -->\n{text}\n<!-- /{mark} -->",
        file.read_text(encoding="utf-8"),
        flags=re.DOTALL,
    )
    file.write_text(whole, encoding="utf-8")


def reproduce_page() -> str:
    """The page with every table."""
    parts = [HEAD]
    for name, title in TABLES.items():
        parts += [f"## {title}", f"```console\nbabn reproduce {name}\n```", REMARKS[name]]
        if name == ATTACKS:
            parts += [attack_table([], caption="").markdown(), NO_ALBERT]
        elif name != FIGURE:
            parts.append(section(name))
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def section(name: str) -> str:
    """A table of the paper: its numbers, and ours as far as there are any."""
    file = RESULTS / f"{name}.json"
    if not file.exists():
        return papers_numbers(name).markdown()
    records, command = load_records(file)
    shown = main_table(records).markdown()
    return "\n\n".join([f"Ours: `{command}`", shown, *circumstances(records)])


def papers_numbers(name: str) -> Table:
    """A table of the paper of which nothing was run."""
    cells = [cell.values for cell in table_grid(name, [0]).cells]
    measures = list(dict.fromkeys(measure for cell in cells for measure in cell["paper"]))
    rows = [
        [
            find_task(cell["task"]).title,
            str(cell["model"]).rpartition("/")[2],
            rule_name(cell["rule"]) + changed(cell),
            *(cell["paper"].get(measure, NONE) for measure in measures),
            NOT_RUN,
        ]
        for cell in cells
    ]
    return Table(["task", "model", "attention", *measures, "ours"], rows)


def changed(cell: Mapping[str, Any]) -> str:
    """What is switched off of the upward path, as the ablation has it, and softer targets."""
    off = [f", {name} 0" for name, value in cell.get("settings", {}).items() if value == 0]
    softer = cell.get("label_smoothing", 0)
    return "".join([*off, f", label smoothing {softer}" if softer else ""])


def bench(name: str = "bench") -> dict[str, Any] | None:
    """The figures of `babn bench`, if they are committed."""
    file = RESULTS / f"{name}.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


GAINS = {
    "softmax, mean": "softmax",
    "BAM, sampled, settings.k=1.5": "BAM, k = 1.5, 20 samples",
    "BABN, sampled, settings.rho=1.5": "BABN, rho = 1.5, 20 samples",
    "softmax, ensemble": "ensemble of the five softmax models",
}


def gains() -> str:
    """What noise does for models that were trained with softer targets."""
    found = mean_table(load_records(RESULTS / "minilm-combined.json")[0])
    rows = {row[0]: row[1:] for row in found.rows}
    columns = ["mean over MRPC, CoLA, RTE", *found.columns[1:]]
    shown = Table(columns, [[GAINS[name], *rows[name]] for name in GAINS])
    return shown.markdown().strip()


DOMAIN_MODELS = {"minilm": "MiniLM", "decomposable": "decomposable", "esim": "ESIM"}


def in_domains(column: tuple[str, str, str, bool], names: Sequence[str]) -> str:
    """A measure of all models in two domains."""
    results = {
        name: load_records(RESULTS / f"{model}-domains.json")[0]
        for model, name in DOMAIN_MODELS.items()
    }
    return side_by_side(results, column, names).markdown().strip()


def domains(model: str) -> str:
    """What rules come to in another domain."""
    records, _ = load_records(RESULTS / f"{model}-domains.json")
    tables = [table.markdown().strip() for table in domain_tables(records)]
    return "\n\n".join([*tables, *circumstances(records)])


def attacked() -> str:
    """How attacks on models of five tasks end."""
    text = (RESULTS / "minilm-attacked.json").read_text(encoding="utf-8")
    found = json.loads(text)["attacks"]
    known = "\n".join(f"- {line}" for line in attack_circumstances(found))
    return "\n\n".join([averages_table(found).markdown().strip(), known])


def in_short() -> str:
    """What training costs beside softmax, as one table with a row for each rule."""
    found = bench()
    if found is None:
        return "Not measured yet."
    rows = [row for row in rows_of(found) if row.task == "train" and row.cost]
    step = {(row.name, row.size.length): row.cost for row in rows if row.cost}
    lengths = sorted({row.size.length for row in rows})
    lines = []
    for name, title in IN_SHORT.items():
        ratios = [step[name, n].seconds / step["softmax", n].seconds for n in lengths]
        lines.append([title, *(f"{ratio:.2f}" for ratio in ratios)])
    heading = ["step, x softmax", *(f"{n} tokens" for n in lengths)]
    return Table(heading, lines).markdown().strip()


IN_SHORT = {
    "BAM": "BAM",
    "BABN heads": 'BABN pairs, `upward="heads"`',
    "BABN keys": 'BABN pairs, `upward="keys"`',
}


def costs(name: str = "bench") -> str:
    """What was measured, as tables."""
    found = bench(name)
    if found is None:
        return "Not measured yet: the repository holds no results of `babn bench`."
    rows = rows_of(found)
    parts = [measured_with(found)]
    parts += [found["note"]] if "note" in found else []
    for task, title in TITLES.items():
        headings, lines = shown(rows, task)
        if lines:
            parts += [f"{title}:", Table(headings, lines).markdown().strip()]
    return "\n\n".join(parts)


def measured_with(found: Mapping[str, Any]) -> str:
    """When something was measured, and with what."""
    return ", ".join([found["date"], *(f"{name} {x}" for name, x in found["versions"].items())])


def cheaper() -> str:
    """Time and memory of training with cheaper upward paths, over softmax's."""
    found = bench("routes")
    if found is None:
        return "Not measured yet: the repository holds no results of `babn bench --routes`."
    lines: dict[str, list[str]] = {}
    for name, _, _, _, _, time, _, _, memory in table(rows_of(found), "train"):
        lines.setdefault(name, []).extend([time, memory])
    lengths = dict.fromkeys(row.size.length for row in rows_of(found))
    heading = [f"{what}, {n} tokens" for n in lengths for what in ("step", "memory")]
    whole = Table(["x softmax", *heading], [[name, *line] for name, line in lines.items()])
    return f"{measured_with(found)}\n\n{whole.markdown().strip()}"


def least() -> str:
    """Work of the GPU over softmax's, beside the floor of it."""
    found = bench()
    if found is None:
        return "None are committed yet."
    names = {"train": "training step", "mean": "posterior mean"}
    lines = [
        [names[task], rule, str(length), f"{measured:.2f}", f"{floor:.2f}"]
        for (task, rule, length), (measured, floor) in floors(rows_of(found)).items()
    ]
    heading = ["", "rule", "tokens", "GPU time, x softmax", "floor, x softmax"]
    return Table(heading, lines).markdown()


SPEEDS = {
    "training": "A training step",
    "mean": "Beam search, posterior mean",
    "sampled": "Beam search, sampled",
}


def speeds() -> str:
    """What translation costs with each rule."""
    file = RESULTS / "translation_speed.json"
    if not file.exists():
        return "Not measured yet: the repository holds no results of it."
    found = json.loads(file.read_text(encoding="utf-8"))
    settings = found["settings"]
    batch, length = int(settings["batch"]), int(settings["length"])
    parts = [
        f"{found['machine']['gpu']}, torch {found['versions']['torch']}, {settings['precision']}; "
        f"{batch} sentences of up to {length} words."
    ]
    for kind, costs in found["costs"].items():
        count = found["target_words"] if kind == "training" else batch * length
        own = {rule: Cost.of(cost) for rule, cost in costs.items()}
        shown = speed_table(own, found["parameters"], count).markdown().strip()
        parts += [f"{SPEEDS[kind]}:", shown]
    return "\n\n".join(parts)


TRANSLATED = {
    "attention": "attention",
    "asked": "asked",
    "BLEU": "BLEU",
    "BLEU, other domain": "BLEU, IWSLT14",
    "chrF ~ NLL": "chrF ~ NLL",
    "chrF ~ mutual information": "chrF ~ MI",
}
"""Columns of the results of translation that the page shows, and their heads."""


def translations() -> str:
    """How well rules translate, and how well they know when they do not."""
    records, command = load_records(RESULTS / "tatoeba.json")
    shown = picked(main_table(records), TRANSLATED)
    return "\n\n".join([f"`{command}`:", shown, *circumstances(records)])


def picked(found: Table, columns: Mapping[str, str]) -> str:
    """Some columns of a table under other names."""
    places = [list(found.columns).index(name) for name in columns]
    rows = [[row[place].replace("settings.", "") for place in places] for row in found.rows]
    return Table([*columns.values()], rows).markdown().strip()


ABOUT_IMAGES = {
    name: name for name in ("attention", "asked", "accuracy", "PAvPU", "ECE", "NLL", "error AUROC")
}
"""What is said of questions about images."""


def images(name: str) -> str:
    """How rules answer questions about images, original and noisy."""
    records, command = load_records(RESULTS / f"{name}.json")
    shown = picked(main_table(records), ABOUT_IMAGES)
    return "\n\n".join([f"`{command}`:", shown, *circumstances(records)])


def compared() -> str:
    """Training steps as they were measured, beside estimates of them."""
    found = bench()
    if found is None:
        return "None are committed yet."
    steps = [
        row for row in rows_of(found) if row.task == "train" and row.name in RULES and row.cost
    ]
    lines = [_compared(row, estimated(row.size)) for row in steps]
    return Table(["rule", "tokens", *COMPARED], lines).markdown()


RULES = {
    "softmax": "softmax",
    "BAM": "BAM",
    "BABN heads": "BABN per pair, heads",
    "BABN keys": "BABN per pair, keys",
}
"""Rules as `babn bench` calls them, and `babn estimate`."""

COMPARED = ("GiB, estimate", "GiB", "ms, estimate", "GPU ms", "estimate / GPU")


def estimated(size: Size) -> dict[str, Estimate]:
    """Estimates of a training step of the model that the benchmark runs, by rule."""
    config = model_config(size)
    work = Workload(batch=size.batch, length=size.length, train=True)
    return {each.name: each for each in estimates(shape_of(config, "ALBERT-base"), work)}


def _compared(row: Row, found: dict[str, Estimate]) -> list[str]:
    estimate, cost = found[RULES[row.name]], row.cost
    assert cost is not None and cost.busy is not None and cost.memory is not None
    return [
        row.name,
        str(row.size.length),
        f"{estimate.memory.total / 2**30:.2f}",
        f"{cost.memory / 2**30:.2f}",
        f"{1e3 * estimate.seconds:.1f}",
        f"{1e3 * cost.busy:.1f}",
        f"{estimate.seconds / cost.busy:.2f}",
    ]


if __name__ == "__main__":
    main()
