"""Processes on the machines of a Ray cluster, or on this one."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from babn.errors import ConfigError, MissingExtraError, one_line
from babn_paper.experiments.engines.engine import Engine, Resources, Slot, WorkerDiedError
from babn_paper.experiments.engines.local import LocalSlot


class RayEngine(Engine):
    """Each slot is an actor, which Ray places where there is room and which hosts one process.

    The cluster is the one that `RAY_ADDRESS` names or that runs on this machine; where there is
    none, Ray is started here. Its machines see the run folders and the data under the same paths,
    and have babn installed.

    Args:
        resources: What runs may take.
    """

    def __init__(self, resources: Resources) -> None:
        self.ray = _import_ray()
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent unasked
        self.ours = not self.ray.is_initialized()
        if self.ours:
            self.ray.init(log_to_driver=False, logging_level="ERROR", include_dashboard=False)
        there = self.ray.cluster_resources()
        self.options = {
            "num_cpus": _share("cpus", resources.cpus, there.get("CPU", 0), resources.jobs),
            "num_gpus": _share("gpus", resources.gpus, there.get("GPU", 0), resources.jobs),
        }

    def slot(self, number: int) -> "RaySlot":
        """The slot with a number, from 0 on."""
        return RaySlot(self.ray, self.options)

    def close(self) -> None:
        """Leaves the cluster."""
        if self.ours:
            self.ray.shutdown()


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("--engine ray needs Ray: pip install 'babn[ray]'") from error
    return ray


def _share(name: str, wanted: float | None, there: float, jobs: int) -> float:
    """What one run gets: as many as wanted, or its share; whole cores, but GPUs in parts."""
    if wanted is None:
        share = there / jobs
        return max(1, int(share)) if name == "cpus" else min(1.0, share)
    if wanted > there:
        raise ConfigError(
            f"{name}={wanted} is not possible: the Ray cluster has {there:.0f}. Ask for less, or "
            "set RAY_ADDRESS to a larger cluster."
        )
    return wanted


class RaySlot(Slot):
    """An actor, and another one if it dies.

    Args:
        ray: The package.
        options: What the actor asks of the cluster.
    """

    def __init__(self, ray: Any, options: dict[str, float]) -> None:
        self.ray, self.options = ray, options
        self.actor: Any = None

    def run(self, folder: Path) -> str:
        """Runs what is prepared in a folder, and returns the worker's answer."""
        if self.actor is None:
            kind = self.ray.remote(Host).options(**self.options, max_concurrency=2, max_restarts=0)
            self.actor = kind.remote(int(self.options["num_cpus"]), os.getcwd())
        try:
            died, answer = self.ray.get(self.actor.run.remote(str(folder.absolute())))
        except self.ray.exceptions.RayError as error:
            self.actor = None
            raise WorkerDiedError(f"its Ray actor is lost ({one_line(error)[:200]})") from error
        if died:
            raise WorkerDiedError(answer)
        return str(answer)

    def interrupt(self) -> None:
        """Does to the process what Ctrl-C does."""
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
    """Holds a process on the machine that Ray has chosen.

    Args:
        cpus: Threads of the process.
        cwd: Where relative paths begin.
    """

    def __init__(self, cpus: int, cwd: str) -> None:
        self.slot = LocalSlot(cpus, cwd=cwd)

    def run(self, folder: str) -> tuple[bool, str]:
        """Whether the process died, and its answer or its end."""
        try:
            return False, self.slot.run(Path(folder))
        except WorkerDiedError as error:
            return True, str(error)

    def interrupt(self) -> None:
        """Does to the process what Ctrl-C does."""
        self.slot.interrupt()

    def close(self) -> None:
        """Waits for the process to end."""
        self.slot.close()
