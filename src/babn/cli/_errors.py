"""How commands fail: one line in red and an exit code, never a traceback."""

import functools
from collections.abc import Callable
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from babn.errors import BabnError, LeaderError, one_line

FAILED, INTERRUPTED = 2, 130


class CommandError(BabnError):
    """A command cannot do what it was asked to."""


def failing_in_one_line(command: Callable[..., None]) -> Callable[..., None]:
    """The command, with errors that a user can mend told in one line."""

    @functools.wraps(command)
    def run(**kwargs: Any) -> None:
        try:
            command(**kwargs)
        except LeaderError:  # the first process tells
            raise typer.Exit(FAILED) from None
        except (BabnError, ImportError, OSError) as error:
            stop(f"error: {one_line(error)}", FAILED)
        except KeyboardInterrupt:
            stop("interrupted", INTERRUPTED)

    return run


def stop(message: str, code: int) -> None:
    """Prints a red line and ends the command."""
    Console(stderr=True).print(Text(message, style="red"), soft_wrap=True)
    raise typer.Exit(code)
