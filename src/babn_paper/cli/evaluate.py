"""`babn evaluate`."""

from pathlib import Path


def evaluate(
    run: Path,
    *,
    again: bool = False,
    samples: int | None = None,
    dropout: bool = False,
    data: str | None = None,
    parts: str | None = None,
) -> None:
    """Show the numbers of a finished run, computed from its saved answers.

    Args:
        run: The run's folder.
        again: Ask the model again, instead of using the answers that are there.
        samples: Samples of attention in sampled mode; asks the model again, and keeps the answers
            under evaluations in the run.
        dropout: Ask with dropout on as well, by samples of both; likewise.
        data: Folder of other test data, builtin or hub; likewise.
        parts: Parts of the data, separated by commas, such as test or noisy=2; likewise.
    """
    from rich.console import Console

    from babn.cli._progress import Bars
    from babn_paper.cli._terminal_tables import show
    from babn_paper.experiments import run as runs
    from babn_paper.experiments.run_folder import RunFolder

    console = Console(highlight=False)
    chosen = [part.strip() for part in parts.split(",")] if parts else []
    if again or samples is not None or dropout or data is not None or chosen:
        with Bars(console) as bars:
            results = runs.evaluate(
                run, samples=samples, dropout=dropout, data=data, parts=chosen, progress=bars
            )
    else:
        results = runs.remeasure(run)
    show(console, results, RunFolder(run).experiment())
