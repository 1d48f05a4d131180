"""The `babn` command: help texts, and errors in one line."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import babn
import babn.cli
from babn.cli._app import app, commands, split_docstring

COMMANDS = (
    "attack",
    "bench",
    "compare-methods",
    "demo",
    "estimate",
    "evaluate",
    "features",
    "inspect",
    "report",
    "reproduce",
    "serve",
    "sweep",
    "train",
    "translate",
    "tune-noise",
    "version",
    "view",
    "vqa",
    "vqa-demo",
)


def run(*arguments: str) -> tuple[int, str]:
    """Exit code and output of a command line."""
    result = CliRunner(env={"COLUMNS": "100", "NO_COLOR": "1"}).invoke(app(), list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_help_lists_every_command_with_its_summary() -> None:
    code, output = run("--help")
    assert code == 0
    assert "Run babn demo" in output
    for name in COMMANDS:
        assert f"│ {name} " in output


def test_no_arguments_show_the_help() -> None:
    assert "Usage: babn" in run()[1] or "Commands" in run()[1]


def test_commands_are_the_files_of_both_folders() -> None:
    assert [name for name, _ in commands()] == list(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_parameter_is_explained(name: str) -> None:
    function = dict(commands())[name]
    summary, lines = split_docstring(function)
    assert summary.endswith(".")
    assert set(lines) == set(function.__annotations__) - {"return"}
    code, output = run(name, "--help")
    assert code == 0
    for parameter in lines:
        assert parameter.strip("_").replace("_", "-") in output.lower()


def test_switches_have_no_twin() -> None:
    assert "--no-" not in run("demo", "--help")[1]


def test_version_names_what_matters() -> None:
    code, output = run("version")
    assert code == 0
    assert babn.__version__ in output
    assert torch.__version__ in output
    assert all(name in output for name in ("Python", "transformers", "platform", "device"))


def test_the_version_is_an_option_too() -> None:
    assert run("--version") == (0, f"babn {babn.__version__}\n")


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_options_name_their_values_instead_of_types(name: str) -> None:
    lines = run(*filter(None, [name]), "--help")[1].split("Options")[-1].splitlines()
    options = [line for line in lines if "--" in line and "--help" not in line]
    assert not any(word in line for line in options for word in ("<", "list[", "{"))


def test_files_and_folders_are_named_as_such() -> None:
    outs = {
        name: run(name, "--help")[1].split("--out ")[1].split()[0] for name in ("bench", "demo")
    }
    assert outs == {"bench": "FILE", "demo": "FOLDER"}


def test_a_misspelt_table_lists_all_of_them() -> None:
    code, output = run("reproduce", "tabel1")
    assert code == 2 and output.count("\n") == 1
    assert "Tables: table1, table2, table3" in output
    assert "figure3, all" in output


def test_unknown_command_is_a_usage_error() -> None:
    code, output = run("convert")
    assert code == 2
    assert "No such command" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--seed", "-1"), "error: seed=-1 is invalid"),
        (("--quick", "--seed", "-1"), "error: seed=-1 is invalid"),
    ],
)
def test_demo_refuses_in_one_line(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    code, output = run("demo", "--out", str(tmp_path / "page"), *arguments)
    assert code == 2
    assert output.strip().startswith(message)
    assert output.count("\n") == 1


def test_demo_refuses_a_folder_it_did_not_write(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    code, output = run("demo", "--quick", "--out", str(tmp_path))
    assert code == 2
    assert "--force" in output
    assert [each.name for each in tmp_path.iterdir()] == ["thesis.tex"]


def test_interruption_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("babn.demo.demo_run.run", interrupted)
    code, output = run("demo", "--quick", "--out", str(tmp_path / "page"))
    assert code == 130
    assert output.strip().splitlines()[-1] == "interrupted"


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_missing_package_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_app", "_errors"):
        monkeypatch.delitem(sys.modules, f"babn.cli.{name}", raising=False)
        monkeypatch.delattr(babn.cli, name, raising=False)
    hidden = [name for name in sys.modules if name.split(".")[0] == package]
    for name in hidden:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SystemExit, match=f"the babn command needs {package}: pip install"):
        babn.cli.main()


@pytest.mark.parametrize(
    "arguments",
    [
        ("bench", "--methods", "x"),
        ("demo", "--seed", "-1"),
        ("estimate", "llama-2-7b", "--length", "0"),
        ("inspect", "./nothing/there"),
        ("serve", "m", "--samples", "0"),
        ("view", "m"),
    ],
)
def test_wrong_arguments_are_reported_before_slow_imports(arguments: tuple[str, ...]) -> None:
    program = "import sys; sys.modules['torch'] = None; from babn.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and "torch" not in done.stderr
