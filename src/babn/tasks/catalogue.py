"""All tasks by name, each loaded when it is first asked for."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from babn.errors import ConfigError
from babn.tasks.task import Task

# Each module has a dictionary TASKS. Only names stand here, so that listing them loads no model.
HOMES = {
    "mrpc": "babn.tasks.glue",
    "cola": "babn.tasks.glue",
    "rte": "babn.tasks.glue",
    "mnli": "babn.tasks.glue",
    "qnli": "babn.tasks.glue",
    "qqp": "babn.tasks.glue",
    "sst2": "babn.tasks.glue",
    "stsb": "babn.tasks.glue",
    "squad1.1": "babn.tasks.squad",
    "squad2.0": "babn.tasks.squad",
    "nli": "babn.tasks.domains",
    "paraphrase": "babn.tasks.domains",
    "commonsense": "babn.tasks.domains",
    "iwslt14": "babn.tasks.translation.task",
    "tatoeba": "babn.tasks.translation.task",
    "translation": "babn.tasks.translation.task",
    "vqa2": "babn.tasks.vqa",
    "easy-vqa": "babn.tasks.vqa",
    "daquar": "babn.tasks.vqa",
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
