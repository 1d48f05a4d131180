"""`babn tune-noise`."""

from pathlib import Path


def tune_noise(run: Path, *, samples: int | None = None, part: str = "dev") -> None:
    """Fit noise level and temperature of a finished run to its development data, without training.

    Chooses the level and temperature with the lowest negative log-likelihood among those that cost
    no accuracy, saves them with the model, and prints the levels tried. Then the model predicts
    again, and the run's predictions and results are replaced.

    Args:
        run: Folder of a finished run of a classification or multiple-choice task.
        samples: Samples of attention; by default as in the run.
        part: Part of the data to fit to.
    """
    from rich.console import Console

    from babn.cli._progress import Bars
    from babn_paper.cli._terminal_tables import print_results
    from babn_paper.experiments.evaluation import evaluate
    from babn_paper.experiments.noise import tune_run
    from babn_paper.experiments.run_folder import RunFolder

    console = Console(highlight=False)
    found, examples = tune_run(run, part=part, samples=samples, progress=console.is_terminal)
    console.print(str(found), markup=False)
    console.print(
        f"noise level {found.level:.3g} and temperature {found.chosen.temperature:.3g}, fitted to "
        f"{examples} examples of {part}; saved in {RunFolder(run).model}",
        markup=False,
        soft_wrap=True,
    )
    with Bars(console) as bars:
        results = evaluate(run, progress=bars)
    print_results(console, results, RunFolder(run).experiment())
