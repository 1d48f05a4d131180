"""Attacks on many models by several recipes, several at a time, and their table."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

from babn.errors import BabnError, ConfigError, one_line
from babn.interrupts import ctrl_c_held_back
from babn.progress import Progress
from babn.validation import check_count
from babn_paper.attacks.plan import RECIPES, Recipe
from babn_paper.attacks.attack_run import attack
from babn_paper.attacks.attack_table import (
    CAPTION,
    Description,
    attack_table,
    circumstances,
    numbers_table,
)
from babn_paper.experiments.results_page import write_table
from babn_paper.experiments.run_folder import write_json


def recipes_of(names: str) -> list[Recipe]:
    """The recipes that names with commas between them stand for; `all` stands for all."""
    wanted = list(RECIPES) if names == "all" else [name.strip() for name in names.split(",")]
    if unknown := [name for name in wanted if name not in RECIPES]:
        known = ", ".join(RECIPES)
        raise ConfigError(f"recipe {unknown[0]} is not known. Give some of {known}, or all.")
    return [recipe for recipe in RECIPES if recipe in wanted]


def attack_many(
    runs: Sequence[Path], recipes: Sequence[Recipe], jobs: int, progress: Progress, **settings: Any
) -> list[str]:
    """Attacks every model by every recipe, and returns what went wrong.

    An attack that fails does not stop the others. What is done already is not done again.

    Args:
        runs: Folders of finished runs.
        recipes: How texts are changed.
        jobs: How many attacks at a time, each in a process of its own.
        progress: Is told of every attack that ends.
        settings: Further arguments of `babn_paper.attacks.attack_run.attack`.
    """
    check_count("jobs", jobs)
    wanted = [(run, recipe) for run in runs for recipe in recipes]
    progress.begin("attacks", len(wanted))
    attempt = partial(_failure, settings)
    failures = []
    for (run, recipe), failure in _each(attempt, wanted, jobs):
        progress.step(1, f"{run} {recipe}")
        if failure:
            failures.append(f"{run}, {recipe}: {failure}")
    return failures


def _each(
    attempt: Callable[[tuple[Path, Recipe]], str], wanted: Sequence[tuple[Path, Recipe]], jobs: int
) -> Iterator[tuple[tuple[Path, Recipe], str]]:
    """Each attack with what went wrong, as they end."""
    if jobs == 1:
        yield from ((each, attempt(each)) for each in wanted)
        return
    threads = max(1, (os.cpu_count() or 1) // jobs)
    with ProcessPoolExecutor(jobs, get_context("spawn"), _begin, (threads,)) as pool:
        try:
            with ctrl_c_held_back():  # workers start here, and inherit it
                futures = {pool.submit(attempt, each): each for each in wanted}
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in active_children():  # each has written what it has done
                worker.terminate()
            raise


def _begin(threads: int) -> None:
    """Readies a worker, which leaves it to its parent to hear of Ctrl-C."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(threads)


def _failure(settings: dict[str, Any], each: tuple[Path, Recipe]) -> str:
    """What goes wrong when a model is attacked; nothing if all goes well."""
    run, recipe = each
    try:
        attack(run, recipe, **settings)
    except (BabnError, OSError) as error:
        return one_line(error)
    return ""


def write_attack_table(found: Sequence[Description], folder: Path, command: str) -> Path:
    """Writes the table of attacks as Markdown, LaTeX and CSV, and all of them as JSON.

    Returns:
        The page.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "results.json", {"command": command, "attacks": list(found)})
    return write_table(attack_table(found), attacks_page(found, "Failed attacks", command), folder)


def attacks_page(found: Sequence[Description], title: str, command: str) -> str:
    """The table of attacks in Markdown, with the command, and all numbers of each attack."""
    parts = [f"## {title}", f"```console\n{command}\n```", CAPTION]
    parts += [attack_table(found).markdown().rstrip()]
    if found:
        known = "\n".join(f"- {line}" for line in circumstances(found))
        parts += [known, "All numbers:", numbers_table(found).markdown()]
    return "\n\n".join(parts)
