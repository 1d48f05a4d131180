"""Configurations, grids and overrides of any content."""

from pathlib import Path
from typing import Any

import pytest
from broken_files import damaged, fuzzed, result_or_error, texts, toml, values
from hypothesis import given
from hypothesis import strategies as st

from babn.errors import ConfigError
from babn_paper.experiments.config_files import (
    find_config,
    merged,
    parse_overrides,
    read_experiment,
    read_values,
    write_experiment,
)
from babn_paper.experiments.experiment import Experiment, field_types
from babn_paper.experiments.grids import read_grid
from babn_paper.experiments.naming import run_path

TINY: dict[str, Any] = {"task": "mrpc", "model": "small", "data": "builtin"}
GRID = """seeds = [0, 1]
[every]
model = "small"
[tasks.mrpc]
[tasks.rte]
epochs = 5.0
[methods.softmax]
[methods.belief]
settings.sigma = 0.0
[cells.rte.belief]
seeds = [3]
[search]
learning_rate = [2e-5, 5e-5]
[search.belief]
settings.rho = [4, 12]
"""
SETTINGS = ("rho", "sigma", "layers", "kl_weight", "max_length", "upward", "noise", "kernel")
fields = st.one_of(st.sampled_from(sorted(field_types())), texts)


def read(path: Path) -> Experiment | None:
    found = result_or_error(lambda: read_experiment(path), str(path))
    if found is not None:
        write_experiment(found, path)
        assert repr(read_experiment(path)) == repr(found)
    return found


@fuzzed
@given(changes=st.dictionaries(fields, values, max_size=3))
def test_fields_of_any_value(changes: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    lines = [f"{toml(name)} = {toml(value)}" for name, value in (TINY | changes).items()]
    path.write_text("\n".join(lines), encoding="utf-8")
    read(path)


@fuzzed
@given(
    method=st.sampled_from(["softmax", "bam", "belief", "mc-dropout", "va-enum"]),
    name=st.one_of(st.sampled_from(SETTINGS), texts),
    value=values,
)
def test_settings_of_any_value(method: str, name: str, value: Any, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    model = "lstm" if method == "va-enum" else "small"
    fields = TINY | {"method": method, "model": model, "settings": {name: value}}
    path.write_text("\n".join(f"{n} = {toml(v)}" for n, v in fields.items()), encoding="utf-8")
    read(path)


@fuzzed
@given(content=damaged(find_config("table1/mrpc-belief").read_bytes()))
def test_files_of_any_content(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes(content)
    read(tmp_path / "config.toml")


@fuzzed
@given(
    names=st.lists(st.one_of(fields, st.sampled_from(["settings.rho", "settings", "a.b"]))),
    value=st.one_of(texts, values.map(toml), st.sampled_from(["[" * 3000, "1\nx = 2", "9" * 5000])),
)
def test_overrides_of_any_content(names: list[str], value: str, tmp_path: Path) -> None:
    def work() -> None:
        overrides = parse_overrides([f"{name}={value}" for name in names])
        made = Experiment.from_dict(merged(TINY, overrides))
        folder = run_path(Path("config.toml"), overrides, made.seed, tmp_path)
        assert folder.resolve().is_relative_to(tmp_path.resolve())

    result_or_error(work)


@fuzzed
@given(content=damaged(GRID.encode()))
def test_grids_of_any_content(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    path.write_bytes(content)
    grid = result_or_error(lambda: read_grid(path), str(path))
    if grid is not None:
        result_or_error(lambda: grid.jobs({}, tmp_path))


@fuzzed
@given(
    place=st.sampled_from(["seeds", "every", "tasks", "methods", "cells", "search"]),
    inner=st.sampled_from(["", ".mrpc", ".mrpc.belief", ".belief", ".belief.settings", ".seeds"]),
    value=values,
)
def test_tables_of_a_grid_of_any_value(place: str, inner: str, value: Any, tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    base = {"tasks.mrpc": {}, "methods.belief": {}, "every": {"model": "small"}}
    if place not in inner:
        base = {n: v for n, v in base.items() if not n.startswith(place) or inner}
    lines = [f"{n} = {toml(v)}" for n, v in ({**base, place + inner: value}).items()]
    path.write_text("\n".join(lines), encoding="utf-8")
    grid = result_or_error(lambda: read_grid(path), str(path))
    if grid is not None:
        result_or_error(lambda: grid.jobs({}, tmp_path))


def test_what_is_no_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none", tmp_path / "a\0b"):
        assert result_or_error(lambda path=path: read_values(path)) is None


@pytest.mark.parametrize("name", ["", ".", "/", "a\0b", "x" * 5000, "table1"])
def test_configurations_of_any_name(name: str) -> None:
    assert result_or_error(lambda: find_config(name)) is None


# What fuzzing has found.


@pytest.mark.parametrize(
    "line",
    [
        "tasks = 1\nmethods = 1",
        "every = 0\n[tasks.mrpc]\n[methods.bam]",
        "cells = 0\n[tasks.mrpc]\n[methods.bam]",
        "cells.mrpc = 0\n[tasks.mrpc]\n[methods.bam]",
        "cells.mrpc.bam = 0\n[tasks.mrpc]\n[methods.bam]",
        "search = [1]\n[tasks.mrpc]\n[methods.bam]",
        "search.bam = 1\n[tasks.mrpc]\n[methods.bam]",
        "x = " + "[" * 3000,
        "x = " + "9" * 5000,
    ],
)
def test_grids_that_were_no_tables(line: str, tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(line)
    with pytest.raises(ConfigError, match=r"grid\.toml"):
        read_grid(tmp_path / "grid.toml")


@pytest.mark.parametrize(
    "field",
    [
        *({name: 10**400} for name in ("steps", "epochs", "learning_rate", "clip", "batch_size")),
        *({"seed": 2**63}, {"max_length": 2**31}, {"settings": {"rho": 10**400}}),
    ],
    ids=str,
)
def test_numbers_without_end_are_refused(field: dict[str, Any]) -> None:
    (name,) = field
    with pytest.raises(ConfigError, match=r"rho|" + name) as found:
        Experiment.from_dict(TINY | field)
    assert len(str(found.value)) < 300


def test_whole_numbers_are_as_good_as_broken_ones() -> None:
    made = Experiment.from_dict(TINY | {"beta2": 0, "settings": {"rho": 2**63}})
    assert type(made.method_config().to_dict()["rho"]) is float


def test_a_field_and_a_table_of_one_name() -> None:
    with pytest.raises(ConfigError, match=r"settings is also set to 3"):
        parse_overrides(["settings=3", "settings.rho=4"])
