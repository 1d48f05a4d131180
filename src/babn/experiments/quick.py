"""Experiments that show that everything works, and nothing else."""

from collections.abc import Mapping
from typing import Any

from babn.experiments.config_files import merged
from babn.experiments.experiment import PAIR_MODELS, VISUAL_MODELS
from babn.experiments.grids import Cell, Grid

FIELDS: Mapping[str, Any] = {
    "model": "small",
    "data": "builtin",
    "steps": 40,
    "warmup_steps": 4,
    "batch_size": 16,
    "learning_rate": 1e-3,
    "max_length": 64,
    "dropout": -1.0,
    "classifier_dropout": -1.0,
    "samples": 4,
}


VISUAL: Mapping[str, Any] = {
    "data": "generated",
    "steps": 60,
    "learning_rate": 1e-3,
    "rate_schedule": "linear",
    "sizes": {},
    "vectors": "",
    "max_length": 14,
}
"""The same for questions about images."""


def quick(grid: Grid) -> Grid:
    """The grid with small models on built-in data; models that are small already stay."""
    cells = []
    for cell in grid.cells:
        made = cell.values["model"] in PAIR_MODELS
        kept = {"model": cell.values["model"]} if made else {}
        kept |= VISUAL if cell.values["model"] in VISUAL_MODELS else {}
        cells.append(Cell(cell.label, merged(cell.values, {**FIELDS, **kept})))
    return Grid(grid.name, cells, grid.seeds)
