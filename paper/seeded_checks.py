"""The command line of checks that run for several seeds, save their records and draw them."""

import argparse
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from babn import plots
from babn.files import replace_text
from babn_paper.experiments.run_folder import machine, versions

Records = list[dict[str, Any]]
Cases = Iterable[tuple[str, Callable[[], Records]]]
"""The name of each case, and a function that returns its records."""


def parser_for(
    script: str, description: str, seeds: list[int], steps: int
) -> argparse.ArgumentParser:
    """A parser of the arguments that all checks have.

    Args:
        script: Path of the script, after which its files are named.
        description: First line of the help.
        seeds: Default seeds.
        steps: Default number of training steps.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seeds", type=int, nargs="+", default=seeds)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--out", type=Path, default=Path(script).with_suffix(".json").name)
    parser.add_argument("--figure", type=Path, default=Path(script).with_suffix(".png").name)
    parser.add_argument("--redraw", action="store_true", help="only draw what --out holds")
    return parser


def run(
    args: argparse.Namespace,
    cases: Cases,
    settings: dict[str, Any],
    draw: Callable[[Records], Figure],
    table: Callable[[Records], list[str]],
) -> None:
    """Runs all cases, saves the records after each, draws them and prints a table.

    Args:
        args: The parsed arguments.
        cases: The cases.
        settings: Settings to save beside seeds and steps.
        draw: Draws the records.
        table: The lines of a table of the records.
    """
    records: Records = []
    if args.redraw:
        records = json.loads(args.out.read_text())["records"]
    else:
        settings = {"steps": args.steps, "seeds": args.seeds, **settings}
        head = {"versions": versions(), "machine": machine(), "settings": settings}
        for name, case in cases:
            records += case()
            replace_text(args.out, json.dumps({**head, "records": records}, indent=1) + "\n")
            print(f"{name}: done", flush=True)
    plots.save(draw(records), args.figure)
    print(*table(records), sep="\n")
