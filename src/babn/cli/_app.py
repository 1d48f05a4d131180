"""The command line, built from the signatures and docstrings of the commands."""

import importlib
import inspect as python_inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from inspect import Parameter
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, get_args, get_origin

import typer

import babn.cli
from babn import __version__
from babn.cli._errors import failing_in_one_line
from babn.plugins import plugins

ABOUT = """Calibrated uncertainty for attention models.

babn turns the attention weights of a model into random variables, so that the model reports its
uncertainty. New here? Run `babn demo`: it takes a few minutes and downloads nothing.
"""

EXPERIMENTS = "Training and experiments"
"""Title of the commands of other packages in the help."""

VALUES = {
    Path: "FOLDER",
    str: "NAME",
    str | None: "NAME",
    int: "N",
    int | None: "N",
    float | None: "X",
    list[str]: "NAME=VALUE",
    list[str] | None: "TEXT",
}
"""Placeholders for the values of options in the help, by type; `Annotated[Path, "FILE"]` sets that
of one parameter."""


def _show_version(wanted: bool) -> bool:
    if wanted:
        print(f"babn {__version__}")
        raise typer.Exit
    return wanted


def _start(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            metavar="",
            help="Show the version and exit.",
        ),
    ] = False,
) -> None:
    pass


def app(*packages: ModuleType) -> typer.Typer:
    """The command line.

    Args:
        *packages: Further packages of commands, beside those of entry points.
    """
    made = typer.Typer(
        help=ABOUT,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback()(_start)
    for name, function in commands(*packages):
        summary, _ = split_docstring(function)
        panel = None if function.__module__.startswith("babn.cli.") else EXPERIMENTS
        made.command(name, help=summary, rich_help_panel=panel)(with_options(function))
    return made


def commands(*packages: ModuleType) -> Iterator[tuple[str, Callable[..., None]]]:
    """Name and function of each command of babn and of installed packages, by name."""
    names = {
        module.name: package.__name__
        for package in (babn.cli, *packages, *plugins("babn.commands"))
        for module in pkgutil.iter_modules(package.__path__)
        if not module.name.startswith("_")
    }
    for name, package in sorted(names.items()):
        found = importlib.import_module(f"{package}.{name}")
        yield name.replace("_", "-"), getattr(found, name)


def with_options(function: Callable[..., None]) -> Callable[..., None]:
    """Wraps a command for typer: help in the annotations, errors in one line."""
    _, lines = split_docstring(function)
    signature = python_inspect.signature(function)
    parameters = [described(p, lines.get(p.name, "")) for p in signature.parameters.values()]
    run = failing_in_one_line(function)
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def described(parameter: Parameter, text: str) -> Parameter:
    """Annotates a parameter with its help; keyword-only parameters become options."""
    name = parameter.name.strip("_").replace("_", "-")
    annotation, value = parameter.annotation, VALUES.get(parameter.annotation, "")
    if get_origin(annotation) is Annotated:
        annotation, value = get_args(annotation)
    option: Any
    if parameter.kind is not Parameter.KEYWORD_ONLY:
        option = typer.Argument(metavar=name.upper(), help=text, show_default=False)
    else:
        # Naming the option keeps typer from adding a --no-... twin to switches.
        shown = annotation in (Path, str, int)
        option = typer.Option(f"--{name}", metavar=value, help=text, show_default=shown)
    return parameter.replace(annotation=Annotated[annotation, option])


def split_docstring(function: Callable[..., None]) -> tuple[str, dict[str, str]]:
    """Splits a docstring into its description and a line for each argument."""
    text, _, arguments = python_inspect.getdoc(function).partition("\nArgs:\n")  # type: ignore[union-attr]
    found = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", arguments, re.MULTILINE)
    return text.strip(), {name: " ".join(line.split()) for name, line in found}
