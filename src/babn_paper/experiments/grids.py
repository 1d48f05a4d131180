"""Grids of experiments (tasks by methods by settings by seeds), and their smoke-test versions."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from babn.errors import ConfigError
from babn_paper.experiments.config_files import (
    BUILT_IN,
    built_in,
    flat,
    merged,
    nested,
    read_values,
)
from babn_paper.experiments.engines import Job
from babn_paper.experiments.experiment import (
    PAIR_MODELS,
    TRANSLATOR,
    VISUAL_MODELS,
    Experiment,
    current_names,
)
from babn_paper.experiments.naming import METHOD_NAMES, RUNS, label, method_of
from babn_paper.tasks.catalogue import task_names

SWEEPS = BUILT_IN.with_name("sweeps")
"""Folder of the built-in grids."""

KNOWN = {"every", "tasks", "methods", "cells", "search", "seeds"}


@dataclass(frozen=True)
class Cell:
    """One experiment of a grid, without its seed.

    Attributes:
        label: Its name within the grid: task, method and values of searched fields.
        values: Its fields.
        seeds: Its seeds.
    """

    label: str
    values: Mapping[str, Any]
    seeds: Sequence[int]


@dataclass(frozen=True)
class Grid:
    """Experiments whose results share a table.

    Attributes:
        name: Name of the grid and of the folder of its runs.
        cells: The experiments.
    """

    name: str
    cells: Sequence[Cell]

    def jobs(self, overrides: Mapping[str, Any], under: Path = RUNS) -> list[Job]:
        """The runs of all cells, with overrides applied to each."""
        return [
            Job(
                Experiment.from_dict(merged(cell.values, {**overrides, "seed": seed})),
                under / self.name / cell.label / f"seed-{seed}",
            )
            for cell in self.cells
            for seed in cell.seeds
        ]


def table_grid(table: str, seeds: Sequence[int]) -> Grid:
    """The grid of one of the paper's tables, with a cell for each built-in configuration."""
    names = built_in(table) if table else []
    if not names:
        tables = sorted({name.partition("/")[0] for name in built_in()})
        raise ConfigError(f"table {table!r} is not known. Known tables: {', '.join(tables)}.")
    cells = [Cell(n.partition("/")[2], read_values(BUILT_IN / f"{n}.toml"), seeds) for n in names]
    return Grid(table, sorted(cells, key=_paper_order))


def _paper_order(cell: Cell) -> tuple[int, bool, str, int, float]:
    """Sort key: tasks, models and methods in the order of the paper's tables."""
    task, model = task_names().index(cell.values["task"]), str(cell.values["model"])
    method = list(METHOD_NAMES).index(method_of(cell.values))
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
    return Grid(grid.name, cells)


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
    values = read_values(path)
    try:
        if unknown := sorted(set(values) - KNOWN):
            raise ConfigError(f"{unknown} is unknown; a grid has {sorted(KNOWN)}.")
        if not values.get("tasks") or not values.get("methods"):
            raise ConfigError("A grid needs at least one [tasks.NAME] and one [methods.NAME].")
        return Grid(path.stem, list(_cells(values)))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _cells(values: Mapping[str, Any]) -> Iterator[Cell]:
    """The cells of every task and method."""
    for task, method in itertools.product(_table(values, "tasks"), _table(values, "methods")):
        fields = {"task": task, "method": method, "seeds": values.get("seeds", [0])}
        for place in (("every",), ("tasks", task), ("methods", method), ("cells", task, method)):
            fields = merged(fields, _table(values, *place))
        for choice in _choices(values, method):
            chosen = merged(fields, choice)
            seeds = chosen.pop("seeds")
            if not isinstance(seeds, list) or not all(type(seed) is int for seed in seeds):
                raise ConfigError(f"seeds={seeds!r} is invalid. Give a list of numbers.")
            tried = {name: value for name, value in choice.items() if name != "seeds"}
            name = "+".join(filter(None, [f"{task}-{method}", label(tried)]))
            yield Cell(name, chosen, seeds)


def _table(values: Any, *place: str) -> dict[str, Any]:
    """A table of a grid, by the names of the outer tables and its own; empty if it is missing."""
    for depth, name in enumerate(place, 1):
        values = values.get(name, {})
        if not isinstance(values, Mapping):
            wanted = ".".join(place[:depth])
            raise ConfigError(f"{wanted} is not a table. Write [{wanted}].")
    return current_names(values)


def _choices(values: Mapping[str, Any], method: str) -> Iterator[dict[str, Any]]:
    """Every combination of the values to try for a method."""
    search = _table(values, "search")
    lists = {name: tried for name, tried in search.items() if name not in values["methods"]}
    together: Any = search.get(method, {})
    if not isinstance(together, list):
        lists, together = merged(lists, _table(values, "search", method)), [{}]
    if not together or not all(isinstance(each, Mapping) for each in together):
        raise ConfigError(f"search.{method}={together!r} is invalid. Give a list of tables.")
    lists = flat(lists)
    for name, tried in lists.items():
        if not isinstance(tried, list) or not tried:
            raise ConfigError(f"search {name}={tried!r} is invalid. Give a list.")
    for *combination, fields in itertools.product(*lists.values(), together):
        chosen = nested(dict(zip(lists, combination, strict=True)))
        yield merged(chosen, current_names(fields))


def quick(grid: Grid) -> Grid:
    """The grid with small models on built-in data, by the fields of `quick.toml`."""
    fields = read_values(BUILT_IN.with_name("quick.toml"))
    cells = [replace(cell, values=merged(cell.values, _quick(cell, fields))) for cell in grid.cells]
    return Grid(grid.name, cells)


def _quick(cell: Cell, fields: Mapping[str, Any]) -> dict[str, Any]:
    model = cell.values["model"]
    if model == TRANSLATOR:
        return {**fields["every"], **fields["translation"], "model": model}
    if model in VISUAL_MODELS:
        return {**fields["every"], **fields["visual"]}
    return {**fields["every"], "model": model if model in PAIR_MODELS else "small"}
