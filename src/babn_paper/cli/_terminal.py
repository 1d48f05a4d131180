"""Results in the terminal: tables, and the answer to a question about an image."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rich.console import Console
from rich.table import Table as TerminalTable

from babn.cli._terminal import empty_table, plain_table
from babn.evaluation.tables import Table
from babn_paper.experiments.experiment import Experiment
from babn_paper.experiments.result_tables import MODE, NONE
from babn_paper.tasks.vqa_predictions import is_of_type, type_accuracy, type_count, type_rows
from babn_paper.visual.question import VisualAnswer

HIDDEN = (
    *("NLL", "measure", "ECE + TS", "AURC", "OOD", "chrF ~", "sacreBLEU", "sentences"),
    "error AUROC",
)
"""Prefixes of columns that are written to files only."""

TEXTS, LONG = ("task", "model", "attention", MODE), "attention"
"""Columns of text, and the one that takes the remaining width."""

GAP = 2
"""Spaces between columns."""

SIGNS = " .:-=+*#%@"
"""Characters for weights from zero to the largest."""

ALPHA = 0.05
"""Significance level of the agreement of samples."""


def make_console(**settings: Any) -> Console:
    """A console that prints lines unchanged; with settings of rich."""
    return Console(highlight=False, markup=False, soft_wrap=True, **settings)


def fitted(table: Table, width: int) -> TerminalTable:
    """The columns of a table of results that fit into the terminal.

    Cells are wrapped between words; where that is not enough, columns are left out.

    Args:
        table: The table.
        width: Width of the terminal.
    """
    rows = [[cell.replace(" ± ", "±") for cell in row] for row in table.rows]
    cells = {name: [row[i] for row in rows] for i, name in enumerate(table.columns)}
    kept = [name for name in table.columns if _is_shown(name, cells[name])]
    least = {name: _least_width(name, cells[name]) for name in kept}
    while sum(least[name] + GAP for name in kept) > width and (
        dropped := _least_needed(kept, cells)
    ):
        kept.remove(dropped)
    left = width - sum(least[name] + GAP for name in kept)
    given = {}
    for name in sorted(kept, key=lambda name: name == LONG):
        given[name] = min(max(map(len, [name, *cells[name]])), least[name] + left)
        left -= given[name] - least[name]
    made = empty_table()
    for name in kept:
        side: Literal["left", "right"] = "left" if name in TEXTS else "right"
        made.add_column(name, justify=side, width=given[name], overflow="fold")
    for i in range(len(rows)):
        made.add_row(*(cells[name][i] for name in kept))
    return made


def _least_needed(kept: Sequence[str], cells: Mapping[str, Sequence[str]]) -> str | None:
    """The column to leave out next: the mode if all rows share it, then numbers from the right.

    The number of seeds stays as long as two other numbers do.
    """
    if MODE in kept and len(set(cells[MODE])) == 1:
        return MODE
    numbers = [name for name in kept if name not in TEXTS]
    if len(numbers) > 3 and numbers[-1] == "seeds":
        return numbers[-2]
    return numbers[-1] if numbers else None


def _least_width(name: str, cells: Sequence[str]) -> int:
    """The width of the longest word of a column of text, or of the longest number."""
    numbers = "\n".join(cells).replace(" / ", " /\n").split("\n")
    words = " ".join(cells).split() if name in TEXTS else numbers
    return max(map(len, [*name.split(), *words]))


def _is_shown(name: str, cells: Sequence[str]) -> bool:
    """Whether the terminal shows a column; columns of numbers without any are hidden."""
    return not name.startswith(HIDDEN) and (name in TEXTS or any(cell != NONE for cell in cells))


def print_results(console: Console, results: dict[str, Any], experiment: Experiment) -> None:
    """Prints all measures of a run, with a table for each part and a column for each mode."""
    for part, modes in results["measures"].items():
        console.print(f"\n{experiment.task}, {part}")
        console.print(_measures_table(modes, results["scores"], experiment.paper))
        if types := type_rows(next(iter(modes.values()), {})):
            console.print("", _types_table(modes, types), sep="\n")
    if classes := experiment.options.get("classes"):
        console.print(f"classes: {', '.join(map(repr, classes))}", style="dim")
    seconds = results["seconds_per_step"]
    console.print(
        f"{results['parameters']:,} parameters, {results['steps']} steps"
        + (f" of {seconds:.3g} s" if seconds else ""),
        style="dim",
    )


def _measures_table(
    modes: dict[str, dict[str, float]], scores: list[str], paper: Any
) -> TerminalTable:
    found = dict.fromkeys(name for values in modes.values() for name in values)
    names = [name for name in found if not is_of_type(name)]
    rows = []
    for name in sorted(names, key=lambda name: name not in scores):
        form = ".0f" if name == "sentences" else ".4f"
        cells = [format(v[name], form) if name in v else "" for v in modes.values()]
        rows.append([name, *cells, *([paper.get(name, "")] if paper else [])])
    return plain_table(["measure", *modes, *(["paper"] if paper else [])], rows)


def _types_table(modes: dict[str, dict[str, float]], types: dict[str, list[str]]) -> TerminalTable:
    """Accuracy by question type; rare types share a row."""
    rows = []
    for row, names in types.items():
        count = type_count(next(iter(modes.values())), names)
        found = [type_accuracy(measures, names) for measures in modes.values()]
        rows.append([row, str(count), *("" if v is None else f"{v:.4f}" for v in found)])
    return plain_table(["accuracy by question type", "questions", *modes], rows)


def print_answer(console: Console, answer: VisualAnswer) -> None:
    """Prints the most probable answers, their uncertainty and the attention maps."""
    console.print(answer.question, style="bold")
    for note in answer.notes:
        console.print(note, style="yellow")
    console.print(_answers(answer))
    console.print(_certainty(answer))
    weights = answer.word_weights.mean[0, 0, 0].tolist()
    spread = answer.word_weights.relative_std[0, 0, 0].tolist()
    words = [
        f"{word} {weight:.2f} (±{100 * std:.0f} %)"
        for word, weight, std in zip(answer.words, weights, spread, strict=False)
    ]
    console.print(f"Attention of the regions to the words: {', '.join(words)}")
    if isinstance(answer.boxes, tuple):
        console.print("Attention to the regions, darker for larger weights:")
        for line in _grid(answer, answer.boxes):
            console.print(f"  {line}")


def _answers(answer: VisualAnswer) -> TerminalTable:
    rows = [[c.answer, f"{c.probability:.3f}", f"{c.std:.3f}"] for c in answer.candidates]
    return plain_table(["answer", "probability", "std over samples"], rows)


def _certainty(answer: VisualAnswer) -> str:
    if math.isnan(answer.p_value):
        return "One sample does not show the uncertainty of attention."
    sure = "agree" if answer.p_value < ALPHA else "do not agree"
    return (
        f"The samples {sure} on the first answer (p = {answer.p_value:.2g}); mutual information "
        f"{answer.mutual_information:.3f} nats."
    )


def _grid(answer: VisualAnswer, shape: tuple[int, int]) -> list[str]:
    weights = answer.region_map.mean[0, 0, 0, : shape[0] * shape[1]]
    levels = (weights / weights.max() * (len(SIGNS) - 1)).round().long()
    rows = levels.reshape(shape).tolist()
    return ["".join(SIGNS[level] * 2 for level in row) for row in rows]
