"""All tasks by name, each loaded when it is first asked for."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from babn.errors import ConfigError
from babn_paper.tasks.task import Task

# Each module has a dictionary TASKS. Only names stand here, so that listing them loads no model.
HOMES = {
    "mrpc": "babn_paper.tasks.glue",
    "cola": "babn_paper.tasks.glue",
    "rte": "babn_paper.tasks.glue",
    "mnli": "babn_paper.tasks.glue",
    "qnli": "babn_paper.tasks.glue",
    "qqp": "babn_paper.tasks.glue",
    "sst2": "babn_paper.tasks.glue",
    "stsb": "babn_paper.tasks.glue",
    "squad1.1": "babn_paper.tasks.squad",
    "squad2.0": "babn_paper.tasks.squad",
    "nli": "babn_paper.tasks.domains",
    "paraphrase": "babn_paper.tasks.domains",
    "commonsense": "babn_paper.tasks.domains",
    "iwslt14": "babn_paper.tasks.translation.task",
    "tatoeba": "babn_paper.tasks.translation.task",
    "translation": "babn_paper.tasks.translation.task",
    "vqa2": "babn_paper.tasks.vqa",
    "easy-vqa": "babn_paper.tasks.vqa",
    "daquar": "babn_paper.tasks.vqa",
}


def task_names() -> tuple[str, ...]:
    """The names of all tasks."""
    return tuple(HOMES)


def find_task(name: str, options: Mapping[str, Any] | None = None) -> Task[Any]:
    """The task of that name.

    Args:
        name: One of `task_names`.
        options: The task's own settings, by name, where they are not the usual ones.
    """
    if name not in HOMES:
        raise ConfigError(f"task={name!r} is not known. Give one of {list(HOMES)}.")
    found: Task[Any] = import_module(HOMES[name]).TASKS[name]
    return found.configured(options or {})
