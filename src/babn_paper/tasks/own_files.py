"""The files of a task on your own data, and the part of them that is held out."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, TypeVar

import torch

from babn.errors import ConfigError, DataError, nearest
from babn.validation import check_share, shown
from babn_paper.tasks.reading import HUB_SPLITS, Row, Rows, read_source

FILES = "files"
"""Value of `Experiment.data` for tasks whose options name their files."""

HELD_OUT_SEED = 0
"""Does not depend on the run's seed, so that runs with different seeds have the same parts."""

Own = TypeVar("Own", bound="OwnFiles")


@dataclass(frozen=True)
class OwnFiles:
    """Files of a task, a mix-in of its dataclass.

    Attributes:
        train: Source of the training data.
        dev: Source of the development data; empty to hold out some of the training data.
        test: Source of further test data, if there is any.
        held_out: Share of the training data that is held out if there is no development data.
    """

    train: str = ""
    dev: str = ""
    test: str = ""
    held_out: float = 0.1

    further_options: ClassVar[tuple[str, ...]] = ()
    """Options of the task beside the files."""

    @classmethod
    def option_names(cls) -> tuple[str, ...]:
        """Names of all options of the task."""
        return (*(field.name for field in fields(OwnFiles)), *cls.further_options)

    def configured(self: Own, options: Mapping[str, Any]) -> Own:
        """Returns the task with options of a configuration."""
        known, name = self.option_names(), getattr(self, "name", "")
        for option, value in options.items():
            if option not in known:
                hint = nearest(option, known, f"Options: {sorted(known)}.")
                raise ConfigError(f"task={name!r} has no option {option}. {hint}")
            _check_type(option, value, getattr(self, option))
        found: dict[str, Any] = {
            n: tuple(v) if isinstance(v, list) else v for n, v in options.items()
        }
        return replace(self, **found)

    def derived(self) -> dict[str, Any]:
        """Returns options that follow from the training data, such as the classes."""
        return {}

    def check_ready(self) -> None:
        """Validates the options that every run needs."""
        if not self.train:
            raise ConfigError(
                "options.train is empty. Name the training data, as with babn train --train."
            )
        check_share("options.held_out", self.held_out)

    def tested_parts(self, data: str) -> list[str]:
        """Returns the parts to evaluate on: all of other data, or those of the files."""
        return ["test"] if data != FILES else ["dev", *(["test"] if self.test else [])]

    def column_options(self) -> tuple[str, ...]:
        """Returns the options that name columns; the first is of the text or image."""
        return ()

    def read_source(self, source: str, split: str) -> Rows:
        """Reads a source and checks its columns.

        Args:
            source: A file, or a data set on the hub.
            split: The split on the hub.
        """
        rows, print_ = read_source(source, split)
        for option in self.column_options():
            column = getattr(self, option)
            if column and column not in rows[0].values:
                raise DataError(
                    f"{option}={column!r} is not a column of {source}. Name one of "
                    f"{list(rows[0].values)} with --{option.replace('_', '-')}."
                )
        return rows, print_

    def rows(self, data: str, part: str) -> tuple[list[Row], str, str]:
        """Returns the rows of a part, their origin and their fingerprint.

        Rows with the same text or image are held out together.

        Args:
            data: `FILES`, or the source of other test data.
            part: `"train"`, `"dev"` or `"test"`.
        """
        source = self._source(data, part)
        held_out = data == FILES and not self.dev and part != "test"
        rows, print_ = self.read_source(source, HUB_SPLITS["train" if held_out else part])
        options = repr([getattr(self, name) for name in self.option_names()])
        print_ += f"-{hashlib.sha256(options.encode()).hexdigest()[:8]}"  # part of cache keys
        if not held_out:
            return rows, source, print_
        column = getattr(self, self.column_options()[0])
        keys = [str(row.values.get(column)) for row in rows]
        chosen = held_out_keys(keys, self.held_out, source)
        kept = [
            row for row, key in zip(rows, keys, strict=True) if (key in chosen) == (part == "dev")
        ]
        note = f"{len(kept)} of {len(rows)}, the rest "
        note += "is for training" if part == "dev" else f"is held out (seed {HELD_OUT_SEED})"
        return kept, f"{source}: {note}", f"{print_}-{part}"

    def _source(self, data: str, part: str) -> str:
        if part not in HUB_SPLITS:
            raise DataError(f"There is no part {part!r}. Give one of {list(HUB_SPLITS)}.")
        if data != FILES:
            if part != "test":
                raise DataError(
                    f"data={data!r} has no part {part!r}. Other data is test data as a whole: give "
                    "test."
                )
            return data
        found: str = getattr(self, part) or (self.train if part == "dev" else "")
        if not found:
            raise DataError(f"The run has no {part} data. Give it with --{part}.")
        return found


def held_out_keys(keys: Sequence[str], share: float, source: str) -> set[str]:
    """Returns a random share of the distinct keys, at least one and not all."""
    distinct = list(dict.fromkeys(keys))
    if len(distinct) < 2:
        raise DataError(
            f"{source} has {len(distinct)} example, of which none can be held out. Give more, or "
            "development data with --dev."
        )
    count = min(max(1, round(share * len(distinct))), len(distinct) - 1)
    generator = torch.Generator().manual_seed(HELD_OUT_SEED)
    order = torch.randperm(len(distinct), generator=generator).tolist()
    return {distinct[i] for i in order[:count]}


def _check_type(name: str, value: Any, default: Any) -> None:
    """Validates that an option has the type of its default."""
    kinds: dict[type, tuple[Any, str]] = {
        str: (str, "a text"),
        float: ((int, float), "a number"),
        int: (int, "a whole number"),
        bool: (bool, "true or false"),
        tuple: ((list, tuple), "a list of texts"),
    }
    wanted, ways = kinds[type(default)]
    listed = isinstance(value, list | tuple)
    good = isinstance(value, wanted) and (isinstance(default, bool) or not isinstance(value, bool))
    if not good or (listed and not all(isinstance(each, str) for each in value)):
        raise ConfigError(f"options.{name}={shown(value)} is invalid. Give {ways}.")
