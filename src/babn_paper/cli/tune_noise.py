"""`babn tune-noise`."""

from pathlib import Path
from typing import Annotated

Column = Annotated[str | None, "COLUMN"]
File = Annotated[str | None, "FILE"]

FEW = 50
"""Number of examples below which the fit is rough."""


def tune_noise(
    model: str,
    *,
    out: Annotated[str | None, "FOLDER"] = None,
    task: str | None = None,
    dev: File = None,
    test: File = None,
    text: Column = None,
    text_pair: Column = None,
    label: Column = None,
    choices: Annotated[str | None, "COLUMNS"] = None,
    samples: int | None = None,
    part: str = "dev",
) -> None:
    """Fit noise level and temperature of a trained model on development data, without training.

    Chooses the level and temperature with the lowest negative log-likelihood among those that lose
    at most 0.3 points of accuracy, saves them with the model, prints all trials, and replaces the
    run's predictions and results. For regression, a residual standard deviation takes the place of
    the temperature.

    The model is a run of babn train. A run without noise (method=softmax) is converted into a new
    run, --out. So is any fine-tuned transformers model, with --task, --dev and the columns of your
    data as for babn train.

    Args:
        model: Folder of a finished run; or a fine-tuned model, a folder that save_pretrained wrote
            or a name on the hub.
        out: Folder of the new run; by default the run itself is changed.
        task: For a fine-tuned model: classification, regression or multiple-choice.
        dev: For a fine-tuned model, the development data to fit to.
        test: For a fine-tuned model, further data to test it on.
        text: Column of the text, by default text.
        text_pair: Column of the second text of a pair.
        label: Column of the label, by default label.
        choices: Columns of the choices, separated by commas, or one column with lists.
        samples: Samples of attention; by default as in the run.
        part: For a run, the part of its data to fit to.
    """
    from babn.cli._errors import CommandError
    from babn.cli._terminal import Bars
    from babn_paper.cli._terminal import make_console, print_results
    from babn_paper.experiments.evaluation import evaluate
    from babn_paper.experiments.noise import tune_model, tune_run
    from babn_paper.experiments.run_folder import RunFolder

    console = make_console()
    given = {"dev": dev, "test": test, "text": text, "text_pair": text_pair, "label": label}
    given["choices"] = choices
    shown = console.is_terminal
    if task is None:
        if wrong := next((name for name, value in given.items() if value is not None), None):
            raise CommandError(f"--{wrong.replace('_', '-')} needs --task. Leave it out.")
        found, examples = tune_run(model, out=out, part=part, samples=samples, progress=shown)
    elif out is None:
        raise CommandError("--out is missing. Name the folder of the new run.")
    else:
        found, examples = tune_model(model, out, task, given, samples=samples, progress=shown)
    run = Path(out or model)
    console.print(str(found))
    fitted = f"noise level {found.level:.3g} and temperature {found.chosen.temperature:.3g}"
    if found.chosen.residual is not None:
        fitted = f"noise level {found.level:.3g} and residual {found.chosen.residual:.3g}"
    console.print(
        f"{fitted}, fitted to {examples} examples of {part}; saved in {RunFolder(run).model}"
    )
    if not found.level:
        console.print(
            "At level 0 there is no noise: samples agree, and babn view shows no uncertainty.",
            style="dim",
        )
    if examples < FEW:
        console.print(
            f"{examples} examples determine them poorly; give more development data.", style="dim"
        )
    with Bars(console) as bars:
        results = evaluate(run, progress=bars)
    print_results(console, results, RunFolder(run).experiment())
