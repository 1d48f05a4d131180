"""`babn demo`."""

from pathlib import Path

from babn.validation import check_at_least


def demo(
    *,
    out: Path = Path("babn-demo"),
    seed: int = 0,
    quick: bool = False,
    force: bool = False,
) -> None:
    """Show what babn adds to a fine-tuned classifier, on a small task.

    Fine-tunes a small pretrained model to recognise the intent of short requests, converts it, fits
    the noise on development texts, and predicts requests within and outside its scope. Compares
    this with softmax, Monte Carlo dropout and a copy trained as BABN; prints a table and writes
    pages with charts and attention. Takes several minutes on two cores.

    Args:
        out: Folder to write the pages and the numbers to.
        seed: Seed of training and samples.
        quick: Train a tiny model for a few seconds, as a smoke test.
        force: Write into the folder even if it holds other files.
    """
    check_at_least("seed", seed, 0)

    from rich.console import Console

    from babn.cli._demo_view import announce, show
    from babn.cli._terminal import Bars
    from babn.cli.version import versions
    from babn.demo.demo_run import run
    from babn.demo.outcome import Settings, prepare, write

    settings, console = Settings(seed=seed, quick=quick), Console(highlight=False)
    prepare(out, force)
    announce(console, settings)
    with Bars(console) as bars:
        outcome = run(settings, bars)
    write(out, outcome, versions())
    show(console, outcome, out)
