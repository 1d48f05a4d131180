"""All tasks by name; a task's module is imported on first use."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from babn.errors import ConfigError
from babn_paper.tasks.task import Task

# Each module has a dictionary TASKS. Names alone are listed here, so that listing imports no model.
MODULES = {
    **dict.fromkeys(("mrpc", "cola", "rte", "mnli", "qnli", "qqp", "sst2", "stsb"), "glue"),
    **dict.fromkeys(("squad1.1", "squad2.0"), "squad"),
    **dict.fromkeys(("nli", "paraphrase", "commonsense"), "domains"),
    **dict.fromkeys(("iwslt14", "tatoeba", "translation"), "translation.task"),
    **dict.fromkeys(("vqa2", "easy-vqa", "daquar", "vqa"), "vqa"),
    **dict.fromkeys(("classification", "regression", "multiple-choice"), "own_texts"),
}


def task_names() -> tuple[str, ...]:
    """Returns the names of all tasks."""
    return tuple(MODULES)


def find_task(name: str, options: Mapping[str, Any] | None = None) -> Task[Any]:
    """Returns the task of a name.

    Args:
        name: One of `task_names`.
        options: Options of the task that differ from their defaults.
    """
    if name not in MODULES:
        raise ConfigError(f"task={name!r} is not known. Give one of {list(MODULES)}.")
    module = import_module(f"babn_paper.tasks.{MODULES[name]}")
    found: Task[Any] = module.TASKS[name]
    return found.configured(options or {})
