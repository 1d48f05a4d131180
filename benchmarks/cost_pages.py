"""Tables of README.md, RESULTS.md and docs/ from the results in `benchmarks/results`.

`python tools/write_pages.py` puts them in their places.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import map_content
import noise_results
import paper_results

from babn.benchmark.results import ratio, rows_of, tables
from babn.evaluation.tables import Table

RESULTS = Path(__file__).parent / "results"


def blocks() -> Iterator[tuple[str, str, str]]:
    """The page, the name and the text of every table."""
    yield "README.md", "gains", noise_in_short("noise-minilm").without("model").markdown()
    yield "docs/kernels.md", "costs", costs_in_short()
    yield "RESULTS.md", "noise", noise_of_both()
    yield "docs/uncertainty.md", "noise", noise()
    yield "docs/uncertainty.md", "structures", noise_results.table(results("noise-ablation"))
    yield "docs/uncertainty.md", "content", content()
    yield "docs/kernels.md", "forms", costs("bench-forms")
    yield "docs/paper_as_written.md", "runs", as_written()
    yield "docs/paper_as_written.md", "lengths", lengths()
    yield "docs/paper_as_written.md", "floor", floor_of_k()
    yield "docs/kernels.md", "bench", costs("bench")
    yield "docs/kernels.md", "cpu", costs("bench-cpu")


def results(name: str) -> dict[str, Any]:
    """A file of results."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def noise() -> str:
    """Calibration with and without noise, for both encoders."""
    found = [results("noise-minilm"), results("noise-e5-small")]
    parts = []
    for each in found:
        parts += [
            f"{each['model']}, {noise_results.seeds(each)} seeds; training with noise took "
            f"{noise_results.training_time(each):.1f} times as long as with softmax (median, "
            "eager, 20 runs at the same time on one GPU)",
            noise_results.table(each),
        ]
    return "\n\n".join([*parts, noise_results.wins(found)])


SUBJECTS = {"bert": "BERT from scratch, intents", "vit": "ViT from scratch, shapes"}
CONTENT = {
    "by_position": "by position",
    "mean by_position": "mean over layers",
    "excess": "correlation of texts, above that of weights",
    "seeds": "two seeds",
    "seeds of weights": "two seeds, weights",
}
"""Measures of `map_content.summary`, and their headings."""


def content() -> str:
    """How far uncertainty maps depend on the input."""
    lines = [
        [f"{results(name)['model']}, SST-2", stage, *_content_of_runs(results(name), stage)]
        for name in ("noise-minilm", "noise-e5-small")
        for stage in ("not trained", "trained")
    ]
    for subject, found in results("map-content")["results"].items():
        for stage, layers in found["stages"].items():
            if layers is not None:
                values = map_content.summary(layers)
                cells = [f"{values[name]:.2f}" for name in CONTENT]
                lines.append([SUBJECTS[subject], stage, *cells])
    return Table(["model", "", *CONTENT.values()], lines).markdown()


def _content_of_runs(found: Mapping[str, Any], stage: str) -> list[str]:
    """The largest value over seeds of each measure."""
    runs = [run["content"][stage] for run in found["runs"] if run["task"] == "sst2"]
    shares = [[layer["by_position"] for layer in layers] for layers in runs]
    excess = max(
        layer["between_texts"] - layer["weights_between_texts"]
        for layers in runs
        for layer in layers
    )
    means = max(sum(each) / len(each) for each in shares)
    return [f"{max(map(max, shares)):.2f}", f"{means:.2f}", f"{excess:.2f}", "-", "-"]


def as_written() -> str:
    """BABN as published beside ours, for every model that was run."""
    return paper_results.page([results(path.stem) for path in sorted(RESULTS.glob("paper-*.json"))])


def lengths() -> str:
    """At which KL weights the method as published trains, by length of the texts."""
    found = sorted(RESULTS.glob("lengths-*.json"))
    return paper_results.page([results(path.stem) for path in found])


def floor_of_k() -> str:
    """How many shapes of the method as published are at their floor at conversion."""
    lines = [
        [
            *(f"{row['rho']:g} {row['scores']} {row['smallest_k']:g}".split()),
            f"{100 * row['floor']:.1f}",
            f"{row['k_median']:.3g}",
            f"{row['kl']:.3g}",
        ]
        for row in results("floor")["rows"]
    ]
    heads = ["rho", "scores", "floor", "% at the floor", "median k", "KL per pair"]
    return Table(heads, lines).markdown()


METHODS = {
    "deterministic": ("deterministic", "1"),
    "deterministic + TS": ("deterministic + TS", "1"),
    "MC dropout": ("MC dropout", "20"),
    "MC dropout + TS": ("MC dropout + TS", "20"),
    "BABN + TS, not trained": ("**BABN, without training**", "20"),
    "BABN + TS, trained": ("**BABN, trained**", "20"),
    "ensemble of 5 + TS": ("ensemble of 5 + TS", "5, and 5 trainings"),
}
"""Methods of the short table, what it calls them, and their forward passes."""

SHORT = ("accuracy", "NLL", "ECE", "errors by H")


def noise_of_both() -> str:
    """The short tables of both encoders in one."""
    first, second = map(noise_in_short, ("noise-minilm", "noise-e5-small"))
    return Table(first.columns, [*first.rows, *second.rows]).markdown()


def noise_in_short(name: str) -> Table:
    """Accuracy, calibration and detection of errors of the methods that a user chooses among."""
    found = results(name)
    measured = noise_results.methods(found)
    lines = [
        [title, found["model"], *noise_results.cells(measured[method])[: len(SHORT)], passes]
        for method, (title, passes) in METHODS.items()
    ]
    return Table(["method", "model", *SHORT, "forward passes"], lines)


IN_SHORT = {
    "BABN": "**BABN**",
    "BAM": "BAM",
    "BABN heads": 'BABN pairs, `upward="heads"`',
    "BABN pairs": 'BABN pairs, `upward="keys"`',
}


def costs_in_short() -> str:
    """Times of a compiled training step relative to softmax, with a row for each method."""
    found = {
        (row.name, row.size.length): row.cost
        for row in rows_of(results("bench-forms"))
        if (row.task, row.form, row.size.model) == ("train", "compiled", "albert") and row.cost
    }
    lengths = sorted({length for _, length in found})

    def cell(name: str, length: int) -> str:
        own, base = found.get((name, length)), found["softmax", length]
        if own is None:
            return "-"
        return f"{ratio(own.busy, base.busy)} ({ratio(own.seconds, base.seconds)})"

    lines = [
        [title, *(cell(name, n) for n in lengths)]
        for name, title in IN_SHORT.items()
        if any((name, n) in found for n in lengths)
    ]
    return Table(["step, x softmax", *(f"{n} tokens" for n in lengths)], lines).markdown()


def costs(name: str) -> str:
    """Everything that `babn bench` measured."""
    found = results(name)
    parts = [measured_with(found)]
    for title, headings, lines in tables(rows_of(found)):
        parts += [f"{title}:", Table(headings, lines).markdown().strip()]
    return "\n\n".join(parts)


def measured_with(found: Mapping[str, Any]) -> str:
    """Date and versions of a measurement."""
    return ", ".join([found["date"], *(f"{name} {x}" for name, x in found["versions"].items())])
