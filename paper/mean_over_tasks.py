"""Results of a grid in the mean over its tasks, since single tasks differ less than seeds do."""

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence

from babn.evaluation.tables import Table
from babn_paper.experiments.naming import attention_name, method_name
from babn_paper.experiments.records import Record
from babn_paper.experiments.result_tables import mean_and_deviation, tried
from babn_paper.tasks.catalogue import find_task

Numbers = tuple[float, float, float]
"""Score, NLL and ECE."""


def mean_table(records: Sequence[Record]) -> Table:
    """Score, NLL and ECE of each method and mode, over the tasks that have all three."""
    by_line: dict[str, dict[int, list[Numbers]]] = defaultdict(lambda: defaultdict(list))
    tasks: dict[str, None] = {}
    for record in records:
        for name, numbers in _lines(record):
            tasks[find_task(record.experiment["task"]).title] = None
            by_line[name][record.experiment["seed"]].append(numbers)
    rows = []
    for name, seeds in by_line.items():
        whole = [runs for runs in seeds.values() if len(runs) == len(tasks)]
        means = [map(statistics.fmean, zip(*runs, strict=True)) for runs in whole]
        cells = [
            mean_and_deviation(list(values), percent)
            for values, percent in zip(zip(*means, strict=True), (True, False, True), strict=True)
        ]
        rows.append([name, *cells])
    caption = f"Means over {', '.join(tasks)}, with standard deviations over seeds:"
    return Table(["attention", "score", "NLL", "ECE"], rows, caption)


def _lines(record: Record) -> Iterator[tuple[str, Numbers]]:
    """Numbers of each kind of prediction."""
    method, task = record.experiment["method"], record.experiment["task"]
    for mode, found in record.measures.items():
        if "NLL" in found:
            name = attention_name(method) if method == "ensemble" else method_name(method, mode)
            numbers = found[find_task(task).scores[-1]], found["NLL"], found["ECE-10"]
            yield f"{name}{tried(record.label)}", numbers
