"""The `babn` command.

A file in this folder without a leading underscore is a command: its function of the same name runs,
and that function's docstring and annotations are the help. A new command is one new file. Other
packages add commands by an entry point of the group `babn.commands`.
"""

import sys


def main() -> None:
    """Runs the command line; exits with a message if typer or rich is missing."""
    try:
        from babn.cli._app import app
    except ModuleNotFoundError as error:
        package = str(error.name).split(".")[0]
        if package not in ("typer", "rich"):
            raise
        sys.exit(f"error: the babn command needs {package}: pip install 'babn[cli]'")
    app()(prog_name="babn")
