"""`babn compare-methods`."""

from pathlib import Path
from typing import Annotated

Column = Annotated[str | None, "COLUMN"]
File = Annotated[str | None, "FILE"]


def compare_methods(
    *,
    train: File = None,
    dev: File = None,
    test: File = None,
    outside: File = None,
    text: Column = None,
    text_pair: Column = None,
    label: Column = None,
    model: str | None = None,
    method: Annotated[list[str], "NAME"] = [],  # noqa: B006  (typer needs a list)
    seeds: int = 1,
    set_: list[str] = [],  # noqa: B006
    out: Path = Path("babn-methods"),
    quick: bool = False,
) -> None:
    """Compare methods of uncertainty on your own texts: accuracy, calibration, detection, cost.

    Trains a classifier with softmax attention, label smoothing, SNGP, BAM and BABN, and applies
    temperature scaling, MC dropout, Laplace, ensembles and BABN without training. Every method
    chooses its settings on the development data alone. Methods that need no training of their own
    share one softmax model per seed.

    Results are written after each method: repeat the command to continue an interrupted comparison
    or to add methods. The table goes to METHODS.md and methods.csv in the folder.

    Args:
        train: Training data: a CSV, TSV, JSON lines or Parquet file, or hub:NAME.
        dev: Development data; by default a tenth of the training data is held out.
        test: Test data; by default a further tenth of the training data is held out.
        outside: Out-of-domain texts, which need no labels.
        text: Column of the text, by default text.
        text_pair: Column of the second text of a pair.
        label: Column of the label, by default label.
        model: A folder that save_pretrained wrote, or a name on the hub; small for a tiny model
            with random weights.
        method: A method, such as SNGP, or a group: post-hoc, ensembles, trained or adapters; can be
            repeated. By default the first three groups, as far as their packages are installed.
        seeds: Number of trainings of each kind, with seeds 0, 1, ...
        set_: Overrides epochs, learning_rate, batch_size, max_length, dropout or options.held_out;
            can be repeated.
        out: Folder for results and trained models.
        quick: Try it out: few texts, one epoch, few samples and members.
    """
    from babn.cli._terminal import Bars
    from babn.files import replace_text
    from babn.validation import check_count
    from babn_paper.cli._terminal import make_console
    from babn_paper.experiments.config_files import parse_overrides
    from babn_paper.method_comparison.method_catalogue import find_methods, is_installed
    from babn_paper.method_comparison.own_text_comparison import OwnTextComparison

    check_count("seeds", seeds)
    flags = {
        "train": train,
        "dev": dev,
        "test": test,
        "text": text,
        "text_pair": text_pair,
        "label": label,
        "model": model,
    }
    console = make_console()
    methods = find_methods(method or ["post-hoc", "ensembles", "trained"])
    missing = [] if method else [each for each in methods if not is_installed(each)]
    for each in missing:
        console.print(f"{each.name}: its package is not installed")
    comparison = OwnTextComparison.of(
        flags,
        parse_overrides(set_),
        outside=outside,
        methods=[each for each in methods if each not in missing],
        seeds=range(seeds),
        quick=quick,
    )
    try:
        with Bars(console) as bars:
            results = comparison.run(out, bars)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(
            f"interrupted; finished methods are in {out}. Repeat the command to continue."
        ) from error
    table = comparison.table(results)
    replace_text(out / "METHODS.md", f"{table.markdown()}\n{table.caption}\n")
    replace_text(out / "methods.csv", table.csv())
    console.print(f"{table.markdown()}\n{table.caption}")
    console.print(f"{out / 'METHODS.md'}, {out / 'methods.csv'}")
