"""Which settings of each rule a search on development data favours.

python benchmarks/choose_settings.py benchmarks/results/minilm-search.json ... [GRID.toml ...]

Several searches count as one. With grids, it writes what was chosen into their rules.

The criterion was fixed before the search was run: the score at the posterior mean, averaged over
tasks and seeds; among settings within a fifth of a point of the best, the one with the smallest NLL
in the rule's fullest mode (sampled, or the mean for softmax), averaged likewise over the tasks that
have one.
"""

import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from babn.experiments.naming import flat
from babn.experiments.records import Record, load_records
from babn.tasks.catalogue import find_task

NEAR = 0.002


def main() -> None:
    """Prints every setting, the chosen one of each rule marked, and writes it into grids."""
    files = [Path(name) for name in sys.argv[1:]]
    records = [r for file in files if file.suffix == ".json" for r in load_records(file)[0]]
    rules = []
    groups: dict[str, dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        rule = record.experiment["rule"]
        if record.results and rule != "ensemble":
            groups[rule][record.label.partition("+")[2]].append(record)
    for rule, by_setting in groups.items():
        found = {name: (score(runs), surprise(runs)) for name, runs in by_setting.items()}
        best = max(value for value, _ in found.values())
        near = {name: nll for name, (value, nll) in found.items() if value >= best - NEAR}
        chosen = min(near, key=near.__getitem__)
        print(f"\n{rule}: {len(found)} settings")
        for name, (value, nll) in sorted(found.items(), key=lambda item: -item[1][0]):
            mark = "  <- chosen" if name == chosen else ""
            print(f"  {100 * value:6.2f}  NLL {nll:.3f}  {name or 'defaults'}{mark}")
        everything = [run for runs in by_setting.values() for run in runs]
        rules.append(rule_table(rule, by_setting[chosen][0], everything))
    for file in (file for file in files if file.suffix == ".toml"):
        head = file.read_text(encoding="utf-8").partition("[rules.")[0]
        file.write_text(head + "\n".join(rules), encoding="utf-8")


def rule_table(rule: str, run: Record, runs: Sequence[Record]) -> str:
    """What was searched over, as it is in one run, as a table of a grid."""
    task = [other for other in runs if other.experiment["task"] == run.experiment["task"]]
    lines = [f"[rules.{rule}]"]
    fields = [flat(other.experiment) for other in task]
    for name, value in flat(run.experiment).items():
        # Fields that are younger than a search were at their defaults in it.
        if name != "seed" and len({repr(own[name]) for own in fields if name in own}) > 1:
            lines.append(f"{name} = {json.dumps(value)}")
    return "\n".join(lines) + "\n"


def developed(run: Record) -> dict[str, dict[str, float]]:
    """Measures of the development data by mode, whatever else a run was tested on."""
    found: dict[str, dict[str, float]] = run.results["measures"]["dev"]
    return found


def score(runs: Sequence[Record]) -> float:
    """Mean score of runs, every task counted alike."""

    def of_run(run: Record) -> float | None:
        return developed(run)["mean"].get(find_task(run.experiment["task"]).scores[-1])

    return _mean_over_tasks(runs, of_run)


def surprise(runs: Sequence[Record]) -> float:
    """Mean NLL of runs in their fullest mode."""

    def of_run(run: Record) -> float | None:
        measures = developed(run)
        return measures["sampled" if "sampled" in measures else "mean"].get("NLL")

    return _mean_over_tasks(runs, of_run)


def _mean_over_tasks(runs: Sequence[Record], value: Callable[[Record], float | None]) -> float:
    tasks: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        if (found := value(run)) is not None:
            tasks[run.experiment["task"]].append(found)
    return statistics.fmean(statistics.fmean(values) for values in tasks.values())


if __name__ == "__main__":
    main()
