"""Grids of experiments (tasks by methods by settings by seeds), and their smoke-test versions."""

import itertools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from babn.errors import ConfigError, one_line
from babn_paper.experiments.config_files import BUILT_IN, built_in, merged, read_values
from babn_paper.experiments.experiment import (
    PAIR_MODELS,
    TRANSLATOR,
    VISUAL_MODELS,
    Experiment,
    current_names,
)
from babn_paper.experiments.jobs import Job
from babn_paper.experiments.naming import RUNS, flat, label, method_of
from babn_paper.tasks.catalogue import task_names

SWEEPS = BUILT_IN.with_name("sweeps")
"""Folder of the built-in grids."""

METHODS = (
    "softmax",
    "va-enum",
    "va-sample",
    "bam",
    "belief",
    "belief/paper",
    "belief/default",
    "belief/released",
)

KNOWN = {"every", "tasks", "methods", "cells", "search", "seeds"}


@dataclass(frozen=True)
class Cell:
    """One experiment of a grid, without its seed.

    Attributes:
        label: Its name within the grid: task, method and values of searched fields.
        values: Its fields.
        seeds: Its seeds; by default the grid's.
    """

    label: str
    values: Mapping[str, Any]
    seeds: Sequence[int] | None = None


@dataclass(frozen=True)
class Grid:
    """Experiments whose results share a table.

    Attributes:
        name: Name of the grid and of the folder of its runs.
        cells: The experiments.
        seeds: Seeds of each experiment.
    """

    name: str
    cells: Sequence[Cell]
    seeds: Sequence[int]

    def jobs(self, overrides: Mapping[str, Any], under: Path = RUNS) -> list[Job]:
        """The runs of all cells, with overrides applied to each."""
        return [
            Job(
                Experiment.from_dict(merged(cell.values, {**overrides, "seed": seed})),
                folder := under / self.name / cell.label / f"seed-{seed}",
                f"babn train {folder}/experiment.toml --out {folder} --resume",
            )
            for cell in self.cells
            for seed in (self.seeds if cell.seeds is None else cell.seeds)
        ]


def table_grid(table: str, seeds: Sequence[int]) -> Grid:
    """The grid of one of the paper's tables, with a cell for each built-in configuration."""
    names = built_in(table) if table else []
    if not names:
        tables = sorted({name.partition("/")[0] for name in built_in()})
        raise ConfigError(f"table {table!r} is not known. Known tables: {', '.join(tables)}.")
    cells = [Cell(n.partition("/")[2], read_values(BUILT_IN / f"{n}.toml")) for n in names]
    return Grid(table, sorted(cells, key=_paper_order), seeds)


def _paper_order(cell: Cell) -> tuple[int, bool, str, int, float]:
    """Sort key: tasks, models and methods in the order of the paper's tables."""
    task, model = task_names().index(cell.values["task"]), str(cell.values["model"])
    method = METHODS.index(method_of(cell.values))
    smoothing = cell.values.get("label_smoothing", 0.0)
    return task, "/" in model, model.rpartition("/")[2], method, smoothing


def select_tasks(grid: Grid, tasks: str | None) -> Grid:
    """The cells of some tasks, given as comma-separated names; all cells for `None`."""
    if tasks is None:
        return grid
    names = [name.strip() for name in tasks.split(",")]
    known = list(dict.fromkeys(cell.values["task"] for cell in grid.cells))
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(f"{grid.name} has no task {', '.join(unknown)}; it has {known}.")
    cells = [cell for cell in grid.cells if cell.values["task"] in names]
    return Grid(grid.name, cells, grid.seeds)


def find_grid(name: str) -> Path:
    """The file of a grid: a path, or a built-in name such as `glue-bert`."""
    for path in (Path(name), SWEEPS / f"{name}.toml"):
        if path.is_file():
            return path
    known = sorted(path.stem for path in SWEEPS.glob("*.toml"))
    raise ConfigError(f"grid {name!r} is neither a file nor built in. Built in: {known}.")


def read_grid(path: Path) -> Grid:
    """Reads a grid from a TOML file.

    `[every]` holds fields of every experiment, `[tasks.NAME]` and `[methods.NAME]` fields of a task
    and of an attention method, `[cells.TASK.METHOD]` fields of a combination. `[search]` lists the
    values to try of each field, `[search.METHOD]` those of one method; `[[search.METHOD]]` lists
    combinations of fields instead. `seeds` is a list; a task, a method, `[cells.TASK.METHOD]` or an
    entry of `[[search.METHOD]]` may have its own.
    """
    try:
        values = _current(tomllib.loads(path.read_text(encoding="utf-8")))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"grid {path} cannot be read: {one_line(error)}.") from error
    if unknown := sorted(set(values) - KNOWN):
        raise ConfigError(f"{path} has {unknown}; a grid has {sorted(KNOWN)}.")
    if not values.get("tasks") or not values.get("methods"):
        raise ConfigError(f"{path} needs at least one [tasks.NAME] and one [methods.NAME].")
    _check(values, path)
    try:
        return Grid(path.stem, list(_cells(values)), values.get("seeds", [0]))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _current(values: Any) -> Any:
    """The tables of a grid with the current names of fields."""
    if isinstance(values, list):
        return [_current(each) for each in values]
    if not isinstance(values, Mapping):
        return values
    return current_names({name: _current(each) for name, each in values.items()})


def _check(values: Mapping[str, Any], path: Path) -> None:
    """Raises if a table or a list is expected and something else is found."""
    _check_seeds(values.get("seeds", [0]), path)
    for name, fields in _tables(values):
        if not isinstance(fields, Mapping):
            raise ConfigError(f"{path}: {name} is not a table. Write [{name}].")
        if "search" not in name:
            _check_seeds(fields.get("seeds", [0]), path)
    for method in values["methods"]:
        for name, tried in _lists(values.get("search", {}), method, values["methods"]).items():
            if not isinstance(tried, list) or not tried:
                raise ConfigError(f"{path}: search {name}={tried!r} is not possible. Give a list.")
        together = values.get("search", {}).get(method, {})
        tables = [each for each in together if isinstance(each, Mapping)]
        if isinstance(together, list) and (not together or tables != together):
            raise ConfigError(
                f"{path}: search.{method}={together!r} is not possible. Give a list of tables."
            )
        for fields in together if isinstance(together, list) else []:
            _check_seeds(fields.get("seeds", [0]), path)


def _tables(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Name and value of everything that must be a table, outer tables first."""
    for kind in ("every", "search", "tasks", "methods", "cells"):
        yield kind, values.get(kind, {})
    for kind in ("tasks", "methods", "cells"):
        yield from ((f"{kind}.{name}", each) for name, each in values.get(kind, {}).items())
    for task, methods in values.get("cells", {}).items():
        yield from ((f"cells.{task}.{name}", each) for name, each in methods.items())
    for method in values["methods"]:
        of_method = values.get("search", {}).get(method, {})
        if not isinstance(of_method, list):
            yield f"search.{method}", of_method


def _check_seeds(seeds: Any, path: Path) -> None:
    if not isinstance(seeds, list) or not all(type(seed) is int for seed in seeds):
        raise ConfigError(f"{path}: seeds={seeds!r} is not possible. Give a list of numbers.")


def _cells(values: Mapping[str, Any]) -> Iterator[Cell]:
    for (task, of_task), (method, of_method) in itertools.product(
        values["tasks"].items(), values["methods"].items()
    ):
        of_both = values.get("cells", {}).get(task, {}).get(method, {})
        fields: dict[str, Any] = {"task": task, "method": method}
        for each in (values.get("every", {}), of_task, of_method, of_both):
            fields = merged(fields, each)
        for choice in _choices(values.get("search", {}), method, values["methods"]):
            chosen = merged(fields, choice)
            seeds = chosen.pop("seeds", None)
            tried = {name: value for name, value in choice.items() if name != "seeds"}
            name = "+".join(filter(None, [f"{task}-{method}", label(tried)]))
            yield Cell(name, chosen, seeds)


def _choices(
    search: Mapping[str, Any], method: str, methods: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Every combination of the values to try for a method."""
    lists, of_method = _lists(search, method, methods), search.get(method, {})
    together = of_method if isinstance(of_method, list) else [{}]
    for *combination, fields in itertools.product(*lists.values(), together):
        choice: dict[str, Any] = {}
        for name, value in zip(lists, combination, strict=True):
            table, dot, inner = name.partition(".")
            if dot:
                choice.setdefault(table, {})[inner] = value
            else:
                choice[name] = value
        yield merged(choice, fields)


def _lists(search: Mapping[str, Any], method: str, methods: Mapping[str, Any]) -> dict[str, Any]:
    """The values to try of each field for a method."""
    common = {name: values for name, values in search.items() if name not in methods}
    of_method = search.get(method, {})
    return flat(merged(common, {} if isinstance(of_method, list) else of_method))


FIELDS: Mapping[str, Any] = {
    "model": "small",
    "data": "builtin",
    "steps": 40,
    "warmup_steps": 4,
    "batch_size": 16,
    "learning_rate": 1e-3,
    "max_length": 64,
    "precision": "float32",
    "dropout": -1.0,
    "classifier_dropout": -1.0,
    "samples": 4,
}


TRANSLATION: Mapping[str, Any] = {
    "steps": 100,
    "batch_size": 32,
    "learning_rate": 2e-2,
    "dropout": 0.1,
    "sizes": {
        "vocab_size": 250,
        "embedding_size": 32,
        "encoder_size": 32,
        "decoder_size": 64,
        "attention_size": 32,
        "layers": 1,
    },
    "options": {"beam": 3, "test_limit": 30, "tokenized": False},
}
"""Fields that differ for translation."""

VISUAL: Mapping[str, Any] = {
    "data": "generated",
    "steps": 60,
    "learning_rate": 1e-3,
    "rate_schedule": "linear",
    "sizes": {},
    "vectors": "",
    "max_length": 14,
}
"""Fields that differ for visual question answering."""


def quick(grid: Grid) -> Grid:
    """The grid with small models on built-in data."""
    cells = [Cell(each.label, merged(each.values, _fields(each))) for each in grid.cells]
    return Grid(grid.name, cells, grid.seeds)


def _fields(cell: Cell) -> dict[str, Any]:
    model = cell.values["model"]
    if model == TRANSLATOR:
        return {**FIELDS, **TRANSLATION, "model": model}
    if model in VISUAL_MODELS:
        return {**FIELDS, **VISUAL}
    return {**FIELDS, "model": model} if model in PAIR_MODELS else dict(FIELDS)
