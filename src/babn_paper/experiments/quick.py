"""Smoke-test versions of experiments: small models on built-in data."""

from collections.abc import Mapping
from typing import Any

from babn_paper.experiments.config_files import merged
from babn_paper.experiments.experiment import PAIR_MODELS, TRANSLATOR, VISUAL_MODELS
from babn_paper.experiments.grids import Cell, Grid

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
