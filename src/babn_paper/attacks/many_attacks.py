"""Attacks many models by several recipes, in parallel."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

from babn.errors import BabnError, ConfigError, one_line
from babn.progress import Progress, sigint_blocked
from babn.validation import check_count
from babn_paper.attacks.attack_run import attack
from babn_paper.attacks.plan import RECIPES, Recipe


def parse_recipes(names: str) -> list[Recipe]:
    """Parses comma-separated recipes; `all` stands for all of them."""
    wanted = list(RECIPES) if names == "all" else [name.strip() for name in names.split(",")]
    if unknown := [name for name in wanted if name not in RECIPES]:
        known = ", ".join(RECIPES)
        raise ConfigError(f"recipe {unknown[0]} is not known. Choose from {known}, or all.")
    return [recipe for recipe in RECIPES if recipe in wanted]


def attack_many(
    runs: Sequence[Path], recipes: Sequence[Recipe], jobs: int, progress: Progress, **settings: Any
) -> list[str]:
    """Attacks every model by every recipe and returns the errors of failed attacks.

    A failed attack does not stop the others. Finished attacks are not repeated.

    Args:
        runs: Folders of finished runs.
        recipes: The attack recipes.
        jobs: Number of parallel attacks, each in its own process.
        progress: Receives every attack that ends.
        settings: Further arguments of `babn_paper.attacks.attack_run.attack`.
    """
    check_count("jobs", jobs)
    wanted = [(run, recipe) for run in runs for recipe in recipes]
    progress.begin("attacks", len(wanted))
    attempt = partial(_try_attack, settings)
    failures = []
    for (run, recipe), failure in _each(attempt, wanted, jobs):
        progress.step(1, f"{run} {recipe}")
        if failure:
            failures.append(f"{run}, {recipe}: {failure}")
    return failures


def _each(
    attempt: Callable[[tuple[Path, Recipe]], str], wanted: Sequence[tuple[Path, Recipe]], jobs: int
) -> Iterator[tuple[tuple[Path, Recipe], str]]:
    """Each attack with its error, in the order in which they end."""
    if jobs == 1:
        yield from ((each, attempt(each)) for each in wanted)
        return
    threads = max(1, (os.cpu_count() or 1) // jobs)
    with ProcessPoolExecutor(jobs, get_context("spawn"), _init_worker, (threads,)) as pool:
        try:
            with sigint_blocked():  # workers start here and inherit the mask
                futures = {pool.submit(attempt, each): each for each in wanted}
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in active_children():  # each has saved its finished examples
                worker.terminate()
            raise


def _init_worker(threads: int) -> None:
    """Initializes a worker process, which leaves SIGINT to its parent."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(threads)


def _try_attack(settings: dict[str, Any], each: tuple[Path, Recipe]) -> str:
    """Attacks a model and returns the error message, or an empty string."""
    run, recipe = each
    try:
        attack(run, recipe, **settings)
    except (BabnError, OSError) as error:
        return one_line(error)
    return ""
