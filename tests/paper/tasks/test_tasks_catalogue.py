"""All tasks by name."""

import pytest

from babn.errors import ConfigError
from babn_paper.tasks.catalogue import find_task, task_names

GLUE = {"mrpc", "cola", "rte", "mnli", "qnli", "qqp", "sst2", "stsb"}


def test_every_name_has_its_task() -> None:
    assert set(task_names()) >= GLUE
    assert all(find_task(name).name == name for name in task_names())


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"task='wnli' is not known\. Give one of \['mrpc'"):
        find_task("wnli")
