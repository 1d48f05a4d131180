"""Where the runs of a grid are run: one file for each engine, and their protocol (`engine.py`)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from babn.errors import ConfigError
from babn_paper.experiments.engines.engine import Engine, Resources

EngineName = Literal["local", "ray", "slurm"]


def make_engine(
    name: str, resources: Resources, logs: Path, options: Mapping[str, str] | None = None
) -> Engine:
    """The engine with a name.

    Args:
        name: `"local"`, `"ray"` or `"slurm"`.
        resources: What runs may take.
        logs: Folder for what an engine writes beside the runs.
        options: Parameters of Slurm.
    """
    if options and name != "slurm":
        raise ConfigError(f"--slurm {' '.join(options)} has no use with --engine {name}.")
    if name == "local":
        from babn_paper.experiments.engines.local import LocalEngine

        return LocalEngine(resources)
    if name == "ray":
        from babn_paper.experiments.engines.ray import RayEngine

        return RayEngine(resources)
    if name == "slurm":
        from babn_paper.experiments.engines.slurm import SlurmEngine

        return SlurmEngine(resources, logs, options or {})
    raise ConfigError(f"--engine {name!r} is not known. Choose local, ray or slurm.")
