"""`babn train`."""

from pathlib import Path


def train(
    config: str,
    *,
    set_: list[str] = [],  # noqa: B006  (typer asks for a list)
    seed: int | None = None,
    data: str | None = None,
    out: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
) -> None:
    """Train and test one model as a configuration says, and keep everything in a run folder.

    The folder holds the configuration, versions, log, model, answers and results. An interrupted
    run loses at most the work since its last checkpoint; --resume goes on to the same weights.
    Started by torchrun -m babn train, several processes share each batch; where torchrun starts
    them again, they go on from the last checkpoint.

    Args:
        config: A TOML file, or the name of a built-in configuration such as table1/mrpc-belief.
        set_: A field to override as NAME=VALUE, e.g. learning_rate=1e-4, or settings.rho=4 for a
            setting of the rule; may be repeated.
        seed: Seed of the run; the same as --set seed=N.
        data: Where to read the data, builtin, hub or a folder; the same as --set data=NAME.
        out: Folder of the run; by default made of the configuration's name and the seed.
        resume: Go on with an unfinished run; does nothing if it is finished.
        overwrite: Begin again, and replace the run that is there.
    """
    from rich.console import Console

    from babn.cli._progress import Bars
    from babn_paper.cli._terminal_tables import show
    from babn_paper.experiments.config_files import find_config, parse_overrides, read_experiment
    from babn_paper.experiments.naming import command, run_path
    from babn_paper.experiments.distributed import process_group
    from babn_paper.experiments.run import run

    path = find_config(config)
    overrides = parse_overrides(set_)
    overrides |= {} if seed is None else {"seed": seed}
    overrides |= {} if data is None else {"data": data}
    experiment = read_experiment(path, overrides)
    folder = Path(out) if out else run_path(path, overrides, experiment.seed)
    heading = command(config, overrides)
    with process_group() as own:
        console = Console(highlight=False, quiet=not own.first)
        console.print(f"run folder: {folder}", markup=False, soft_wrap=True)
        with Bars(console) as bars:
            results = run(
                experiment,
                folder,
                resume=resume,
                overwrite=overwrite,
                heading=heading,
                progress=bars,
            )
    show(console, results, experiment)
