"""Runs in processes on the machines of a Ray cluster."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from babn.errors import ConfigError, import_extra, one_line
from babn_paper.experiments.engines import Engine, Resources, Slot, WorkerDiedError
from babn_paper.experiments.engines.local import LocalSlot


class RayEngine(Engine):
    """One Ray actor per slot, which starts a worker process on the machine that Ray chooses.

    Uses the cluster at `RAY_ADDRESS` or the one that runs on this machine; if there is none, Ray is
    started here. All machines need babn, and the run folders and data under the same paths.

    Args:
        resources: Resources of the runs.
    """

    def __init__(self, resources: Resources) -> None:
        self.ray = import_extra("ray", "--engine ray needs Ray", "ray")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no telemetry
        self.ours = not self.ray.is_initialized()
        if self.ours:
            self.ray.init(log_to_driver=False, logging_level="ERROR", include_dashboard=False)
        there = self.ray.cluster_resources()
        self.options = {
            "num_cpus": _share("cpus", resources.cpus, there.get("CPU", 0), resources.jobs),
            "num_gpus": _share("gpus", resources.gpus, there.get("GPU", 0), resources.jobs),
        }

    def slot(self, number: int) -> "RaySlot":
        """Makes a slot."""
        return RaySlot(self.ray, self.options)

    def close(self) -> None:
        """Disconnects from the cluster."""
        if self.ours:
            self.ray.shutdown()


def _share(name: str, wanted: float | None, there: float, jobs: int) -> float:
    """Cores or GPUs of one run: as requested, or an equal share of the cluster."""
    if wanted is None:
        share = there / jobs
        return max(1, int(share)) if name == "cpus" else min(1.0, share)
    if wanted > there:
        raise ConfigError(
            f"{name}={wanted} is not possible: the Ray cluster has {there:.0f}. Request less, or "
            "set RAY_ADDRESS to a larger cluster."
        )
    return wanted


class RaySlot(Slot):
    """Does runs in an actor and replaces the actor if it dies.

    Args:
        ray: The `ray` package.
        options: Resources of the actor.
    """

    def __init__(self, ray: Any, options: dict[str, float]) -> None:
        self.ray, self.options = ray, options
        self.actor: Any = None

    def run(self, folder: Path) -> str:
        """Does the run prepared in a folder and returns the worker's reply."""
        if self.actor is None:
            kind = self.ray.remote(Host).options(**self.options, max_concurrency=2, max_restarts=0)
            self.actor = kind.remote(int(self.options["num_cpus"]), os.getcwd())
        try:
            died, reply = self.ray.get(self.actor.run.remote(str(folder.absolute())))
        except self.ray.exceptions.RayError as error:
            self.actor = None
            raise WorkerDiedError(f"its Ray actor is lost ({one_line(error)[:200]})") from error
        if died:
            raise WorkerDiedError(reply)
        return str(reply)

    def interrupt(self) -> None:
        """Sends SIGINT to the process."""
        actor = self.actor
        if actor is not None:
            with suppress(self.ray.exceptions.RayError):
                self.ray.get(actor.interrupt.remote(), timeout=10)

    def close(self) -> None:
        """Ends the process and the actor."""
        actor, self.actor = self.actor, None
        if actor is not None:
            with suppress(self.ray.exceptions.RayError):
                self.ray.get(actor.close.remote())
            self.ray.kill(actor)


class Host:
    """The actor: holds a worker process on the machine that Ray has chosen.

    Args:
        cpus: Threads of the process.
        cwd: Working directory of the process.
    """

    def __init__(self, cpus: int, cwd: str) -> None:
        self.slot = LocalSlot(cpus, cwd=cwd)

    def run(self, folder: str) -> tuple[bool, str]:
        """Whether the process died, and the worker's reply or the cause of death."""
        try:
            return False, self.slot.run(Path(folder))
        except WorkerDiedError as error:
            return True, str(error)

    def interrupt(self) -> None:
        """Sends SIGINT to the process."""
        self.slot.interrupt()

    def close(self) -> None:
        """Waits for the process to end."""
        self.slot.close()
