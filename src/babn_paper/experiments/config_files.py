"""Experiments from TOML files with overrides, or from the flags of `babn train`."""

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from babn.errors import ConfigError, nearest, one_line
from babn_paper.experiments.experiment import Experiment, current_names, field_types
from babn_paper.tasks.catalogue import find_task
from babn_paper.tasks.own_files import FILES, OwnFiles

BUILT_IN = Path(str(files("babn_paper.experiments").joinpath("configs")))
"""Folder of the built-in configurations, one for each cell of the paper's tables."""


def find_config(name: str) -> Path:
    """The file of a configuration: a path, or a built-in name such as `table1/mrpc-belief`."""
    for path in (Path(name), BUILT_IN / f"{name}.toml"):
        if path.is_file():
            return path
    known = built_in()
    tables = ", ".join(sorted({each.partition("/")[0] for each in known}))
    hint = f"Built in are the cells of {tables}, such as table1/mrpc-belief."
    advice = nearest(name, known, hint)
    raise ConfigError(f"config {name!r} is neither a file nor built in. {advice}")


def built_in(table: str = "") -> list[str]:
    """Sorted names of the built-in configurations, of all tables or of one."""
    found = sorted((BUILT_IN / table).rglob("*.toml"))
    return [path.relative_to(BUILT_IN).with_suffix("").as_posix() for path in found]


def config_name(path: Path) -> str:
    """The name of a configuration: its path among the built-in ones, or its file name."""
    if path.is_relative_to(BUILT_IN):
        return path.relative_to(BUILT_IN).with_suffix("").as_posix()
    return path.stem


def plain(value: Any) -> str:
    """A value as part of a folder name."""
    return re.sub(r"[^\w.+-]", "_", str(value))


def read_values(path: Path) -> dict[str, Any]:
    """The fields that a file sets, by their current names."""
    try:
        return current_names(tomllib.loads(path.read_text(encoding="utf-8")))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    except (ValueError, RecursionError) as error:  # syntax, encoding, nesting, huge numbers
        raise ConfigError(f"{path} is not TOML: {one_line(error)}.") from error


def read_experiment(path: Path, overrides: Mapping[str, Any] | None = None) -> Experiment:
    """Reads an experiment and applies overrides."""
    values = merged(read_values(path), overrides or {})
    try:
        return Experiment.from_dict(values)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def merged(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Fields updated by overrides; nested tables are merged."""
    result = dict(values)
    for name, value in overrides.items():
        tables = isinstance(value, Mapping) and isinstance(result.get(name), Mapping)
        result[name] = {**result[name], **value} if tables else value
    return result


def flat(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields with those of nested tables as `table.name`."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{inner}": each for inner, each in value.items()}
        else:
            found[name] = value
    return found


def nested(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `flat`."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        table, dot, inner = name.partition(".")
        if dot and isinstance(found.get(table, {}), Mapping):
            found = merged(found, {table: {inner: value}})
        elif dot:
            other = found[table]
            raise ConfigError(f"{name}={value!r} is invalid: {table} is also set to {other!r}.")
        else:
            found[name] = value
    return found


def split_settings(option: str, settings: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Name and value of each `NAME=VALUE` string that is given by an option."""
    for text in settings:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise ConfigError(f"{option} {text} is invalid. Write NAME=VALUE.")
        yield name, value


def parse_overrides(settings: Sequence[str]) -> dict[str, Any]:
    """Parses `NAME=VALUE` strings; fields of a table are given as `TABLE.NAME=VALUE`."""
    overrides = {
        name: value if field_types().get(name) is str else _parse(value)
        for name, value in split_settings("--set", settings)
    }
    return current_names(nested(overrides))


def write_experiment(experiment: Experiment, path: Path) -> None:
    """Writes an experiment as TOML."""
    values = experiment.to_dict()
    lines = [f"{name} = {_toml(v)}" for name, v in values.items() if not isinstance(v, dict)]
    for name, table in values.items():
        if isinstance(table, dict) and table:
            lines += ["", f"[{name}]", *(f"{_key(key)} = {_toml(v)}" for key, v in table.items())]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _parse(text: str) -> Any:
    """A TOML value, or a string if the text is not one."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def _toml(value: Any) -> str:
    # TOML writes strings, integers and booleans as JSON does, but floats as Python does.
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() else json.dumps(name)


FROM_SCRATCH: Mapping[str, Any] = {"learning_rate": 1e-3, "weight_decay": 0.0, "epochs": 10.0}

DEFAULTS: dict[str, Mapping[str, Any]] = {
    "classification": {},
    "regression": {},
    "multiple-choice": {},
    "translation": {**FROM_SCRATCH, "model": "lstm", "dropout": 0.3, "samples": 8},
    "vqa": {**FROM_SCRATCH, "model": "mcan-small"},
}
"""Tasks on your own data, and the fields of their experiments that differ from the defaults."""

LISTS = ("choices",)
"""Flags with several columns, separated by commas."""


def own_experiment(
    task: str, flags: Mapping[str, str | None], overrides: Mapping[str, Any]
) -> Experiment:
    """Makes the experiment that flags describe; reads the training data for its classes.

    Args:
        task: One of `DEFAULTS`.
        flags: Values of the flags by their names with underscores; `None` if not given.
        overrides: Fields of the experiment.
    """
    if task not in DEFAULTS:
        hint = nearest(task, DEFAULTS, f"Give one of {', '.join(DEFAULTS)}.")
        raise ConfigError(f"--task {task} is not known. {hint}")
    given = {name: value for name, value in flags.items() if value is not None}
    model = given.pop("model", overrides.get("model", DEFAULTS[task].get("model")))
    if model is None:
        raise ConfigError(
            "--model is missing. Give a folder that save_pretrained wrote, a name on the hub, or "
            "small for a tiny model with random weights."
        )
    if "train" not in given:
        raise ConfigError("--train is missing. Name the training data.")
    fields = merged({**DEFAULTS[task], "task": task, "model": model, "data": FILES}, overrides)
    options = merged(_options(task, given, flags), fields.get("options", {}))
    if fields.get("method", "belief") == "belief":  # the default of the library
        fields["settings"] = {"noise_over": "keys", **fields.get("settings", {})}
    described = find_task(task, options)
    assert isinstance(described, OwnFiles)
    return Experiment.from_dict({**fields, "options": {**described.derived(), **options}})


def _options(task: str, given: Mapping[str, str], flags: Iterable[str]) -> dict[str, Any]:
    """Returns the options of a task that are given by flags, which must apply to the task."""
    described = find_task(task)
    assert isinstance(described, OwnFiles)
    known = [name for name in flags if name in described.option_names()]
    for name in given:
        if name not in known:
            listed = ", ".join(f"--{each.replace('_', '-')}" for each in known)
            raise ConfigError(
                f"--{name.replace('_', '-')} does not apply to --task {task}, only {listed} do."
            )
    return {name: _listed(value) if name in LISTS else value for name, value in given.items()}


def _listed(value: str) -> list[str]:
    return [each.strip() for each in value.split(",") if each.strip()]


def own_name(task: str, train: str) -> str:
    """Returns the name of the folder of runs, such as `classification-reviews`."""
    first = train.partition(",")[0]
    stem = first if first.startswith("hub:") else Path(first).name.partition(".")[0]
    return f"{task}-{plain(stem)}".replace(".", "_")


def describe_data(experiment: Experiment) -> list[str]:
    """Reads and validates all parts of own data, and returns a line about each."""
    task = find_task(experiment.task, experiment.options)
    if not isinstance(task, OwnFiles) or experiment.data != FILES:
        return []
    parts = [task.read(FILES, part) for part in ("train", *task.tested_parts(FILES))]
    return [f"{part.name}: {len(part.examples)} examples ({part.origin})" for part in parts]
