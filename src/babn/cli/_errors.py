"""Errors of commands, as one red line and an exit code, and checks before slow imports."""

import functools
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from babn.errors import BabnError, BabnWarning, LeaderError, is_out_of_memory, one_line

FAILED, INTERRUPTED = 2, 130


class CommandError(BabnError):
    """Invalid arguments of a command."""


HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
"""Form of model names on the Hugging Face hub: `model` or `owner/model`."""


def check_model(model: str) -> None:
    """Validates that a model is a folder, or may be on the hub."""
    if not HUB_NAME.fullmatch(model) and not Path(model).exists():
        raise CommandError(f"{model} does not exist. Give a folder, or a name on the hub.")


def failing_in_one_line(command: Callable[..., None]) -> Callable[..., None]:
    """Wraps a command so that errors a user can fix are printed in one line."""

    @functools.wraps(command)
    def run(**kwargs: Any) -> None:
        try:
            with warning_in_one_line():
                command(**kwargs)
        except LeaderError:  # rank zero prints the error
            raise typer.Exit(FAILED) from None
        except (BabnError, ImportError, OSError) as error:
            stop(f"error: {one_line(error)}", FAILED)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            remedy = "Use a smaller batch_size, max_length or number of samples."
            stop(f"error: out of memory: {one_line(error)[:200]} {remedy}", FAILED)
        except KeyboardInterrupt as error:
            stop(str(error) or "interrupted", INTERRUPTED)

    return run


@contextmanager
def warning_in_one_line() -> Iterator[None]:
    """Prints babn's own warnings without their source location."""
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *others: Any) -> None:
        if not issubclass(category, BabnWarning):
            usual(message, category, *others)
            return
        text = Text(f"warning: {message}", style="yellow")
        Console(stderr=True).print(text, soft_wrap=True)

    with warnings.catch_warnings():
        warnings.showwarning = show  # type: ignore[assignment]
        yield


def stop(message: str, code: int) -> None:
    """Prints a red line and ends the command."""
    Console(stderr=True).print(Text(message, style="red"), soft_wrap=True)
    raise typer.Exit(code)
