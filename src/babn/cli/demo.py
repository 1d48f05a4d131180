"""`babn demo`."""

from pathlib import Path

from babn.validation import check_at_least, check_count


def demo(
    *,
    out: Path = Path("babn-demo"),
    seed: int = 0,
    epochs: int | None = None,
    model: str = "auto",
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
        epochs: Epochs of training.
        model: auto (the pretrained MiniLM if it is installed), small (a tiny model from scratch),
            or the folder of an encoder that save_pretrained wrote.
        quick: Train a tiny model for a few seconds, as a smoke test.
        force: Write into the folder even if it holds other files.
    """
    check_at_least("seed", seed, 0)
    if epochs is not None:
        check_count("epochs", epochs)

    from babn.cli._demo_view import Terminal
    from babn.cli.version import versions
    from babn.demo.demo_run import run
    from babn.demo.outcome import Settings, prepare, write

    settings = Settings(model=model, seed=seed, epochs=epochs, quick=quick)
    terminal = Terminal()
    prepare(out, force)
    terminal.announce(settings)
    with terminal:
        outcome = run(settings, terminal)
    write(out, outcome, versions())
    terminal.show(outcome, out)
