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
    """Train and test one model, and save everything in a run folder.

    The folder holds configuration, versions, log, model, predictions and results. An interrupted
    run loses at most the steps since its last checkpoint; --resume continues to the same weights as
    an uninterrupted run. With torchrun -m babn train, several processes share each batch and resume
    from the last checkpoint when torchrun restarts them.

    Args:
        config: A TOML file, or a built-in configuration such as table1/mrpc-belief.
        set_: Overrides a field, as NAME=VALUE, such as learning_rate=1e-4, or settings.rho=4 for a
            setting of the attention method; can be repeated.
        seed: Seed of the run; same as --set seed=N.
        data: Source of the data: builtin, hub or a folder; same as --set data=NAME.
        out: Folder of the run; by default named by configuration and seed.
        resume: Resume an unfinished run; does nothing if it is finished.
        overwrite: Replace an existing run.
    """
    from rich.console import Console

    from babn.cli._progress import Bars
    from babn_paper.cli._terminal_tables import print_results
    from babn_paper.experiments.config_files import find_config, parse_overrides, read_experiment
    from babn_paper.experiments.distributed import process_group
    from babn_paper.experiments.naming import command, run_path
    from babn_paper.experiments.run import run

    path = find_config(config)
    overrides = parse_overrides(set_)
    overrides |= {} if seed is None else {"seed": seed}
    overrides |= {} if data is None else {"data": data}
    experiment = read_experiment(path, overrides)
    folder = Path(out) if out else run_path(path, overrides, experiment.seed)
    heading = command(config, overrides)
    with process_group() as world:
        console = Console(highlight=False, quiet=not world.is_rank_zero)
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
    print_results(console, results, experiment)
