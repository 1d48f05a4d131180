"""`babn train`."""

from pathlib import Path
from typing import Annotated

Column = Annotated[str | None, "COLUMN"]
File = Annotated[str | None, "FILE"]


def train(
    config: str = "",
    *,
    task: str | None = None,
    train: File = None,
    dev: File = None,
    test: File = None,
    text: Column = None,
    text_pair: Column = None,
    label: Column = None,
    choices: Annotated[str | None, "COLUMNS"] = None,
    source: Column = None,
    target: Column = None,
    image: Column = None,
    images: Annotated[str | None, "FOLDER"] = None,
    model: str | None = None,
    set_: list[str] = [],  # noqa: B006  (typer needs a list)
    seed: int | None = None,
    data: str | None = None,
    out: Annotated[str | None, "FOLDER"] = None,
    resume: bool = False,
    overwrite: bool = False,
) -> None:
    """Train and test one model, and save everything in a run folder.

    Give a configuration, or --task and your own data: CSV, TSV, JSON lines or Parquet files, or
    data sets on the Hugging Face hub as hub:NAME, hub:NAME:CONFIG or hub:NAME:CONFIG:SPLIT.
    docs/own_data.md has examples.

    The folder holds configuration, versions, log, model, predictions and results. An interrupted
    run loses at most the steps since its last checkpoint; --resume continues to the same weights as
    an uninterrupted run. With torchrun -m babn train, several processes share each batch and resume
    from the last checkpoint when torchrun restarts them.

    Args:
        config: A TOML file, or a built-in configuration such as table1/mrpc-belief.
        task: Task on your own data: classification, regression, multiple-choice, translation or
            vqa (questions about images).
        train: Training data; for translation a table, or two aligned files as SOURCE,TARGET.
        dev: Development data; by default a tenth of the training data is held out.
        test: Further test data.
        text: Column of the text, by default text; for vqa of the question, by default question.
        text_pair: Column of the second text of a pair.
        label: Column of the label, by default label; for vqa of the answer, by default answer.
        choices: Columns of the choices, separated by commas, or one column with lists.
        source: Column of the sentences to translate, by default source.
        target: Column of their translations, by default target.
        image: Column of the image's name, by default image.
        images: Folder or tar file with the images.
        model: A folder that save_pretrained wrote, or a name on the hub; small for a tiny model
            with random weights. By default lstm for translation and mcan-small for vqa.
        set_: Overrides a field, such as learning_rate=1e-4 or method=softmax, settings.rho=4 for a
            setting of the attention method, or options.held_out=0.2 for an option of the task; can
            be repeated.
        seed: Seed of the run; same as --set seed=N.
        data: For a configuration, the source of the data: builtin, hub or a folder.
        out: Folder of the run; by default named by configuration or data, overrides and seed.
        resume: Resume an unfinished run; does nothing if it is finished.
        overwrite: Replace an existing run.
    """
    from babn.cli._errors import CommandError
    from babn.cli._terminal import Bars
    from babn_paper.cli._terminal import make_console, print_results
    from babn_paper.experiments.config_files import (
        describe_data,
        find_config,
        own_experiment,
        own_name,
        parse_overrides,
        read_experiment,
    )
    from babn_paper.experiments.distributed import process_group
    from babn_paper.experiments.naming import run_path
    from babn_paper.experiments.run import interrupted, run

    overrides = parse_overrides(set_) | ({} if seed is None else {"seed": seed})
    flags = {
        "train": train,
        "dev": dev,
        "test": test,
        "text": text,
        "text_pair": text_pair,
        "label": label,
        "choices": choices,
        "source": source,
        "target": target,
        "image": image,
        "images": images,
        "model": model,
    }
    if bool(config) == bool(task):
        raise CommandError("Give a configuration, or --task with --train and --model.")
    if task:
        if data is not None:
            raise CommandError("--data does not apply to --task. Name the data with --train.")
        experiment = own_experiment(task, flags, overrides)
        path = Path(own_name(task, train or ""))
    else:
        if wrong := next((name for name, value in flags.items() if value is not None), None):
            raise CommandError(f"--{wrong.replace('_', '-')} needs --task. Leave it out.")
        overrides |= {} if data is None else {"data": data}
        path = find_config(config)
        experiment = read_experiment(path, overrides)
    place = Path(out) if out else run_path(path, overrides, experiment.seed)
    with process_group() as world:
        console = make_console(quiet=not world.is_rank_zero)
        for line in (*describe_data(experiment), f"run folder: {place}"):
            console.print(line)
        try:
            with Bars(console) as bars:
                results = run(experiment, place, resume=resume, overwrite=overwrite, progress=bars)
        except KeyboardInterrupt as error:
            raise interrupted(place) from error
    print_results(console, results, experiment)
