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
    """Show the measures of a finished run, computed from its saved predictions.

    With --samples, --dropout, --data or --parts the model predicts again, and the new predictions
    and results go to RUN/evaluations.

    Args:
        run: The run's folder.
        again: Predict again with the settings of the run.
        samples: Samples of attention in sampled mode.
        dropout: Also predict by samples of attention with dropout on.
        data: Source of other test data: a folder, builtin or hub.
        parts: Parts of the data, separated by commas, such as test or noisy=2.
    """
    from babn.cli._terminal import Bars
    from babn_paper.cli._terminal import make_console, print_results
    from babn_paper.experiments import evaluation
    from babn_paper.experiments.run_folder import RunFolder

    console = make_console()
    chosen = [part.strip() for part in parts.split(",")] if parts else []
    if again or samples is not None or dropout or data is not None or chosen:
        with Bars(console) as bars:
            results = evaluation.evaluate(
                run, samples=samples, dropout=dropout, data=data, parts=chosen, progress=bars
            )
    else:
        results = evaluation.remeasure(run)
    print_results(console, results, RunFolder(run).experiment())
