"""Runs the command line from source, where entry points are not installed."""

import babn_paper.cli
from babn.cli._app import app

if __name__ == "__main__":
    app(babn_paper.cli)(prog_name="babn")
