"""Engines for several machines: actors of a Ray cluster, or Slurm jobs submitted by submitit."""

import os
import shutil
import signal
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from babn.errors import ConfigError, import_extra, one_line
from babn_paper.experiments.engines import (
    Engine,
    Job,
    LocalSlot,
    Resources,
    Slot,
    WorkerDiedError,
)
from babn_paper.experiments.experiment import Experiment


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
            f"{name}={wanted} is invalid: the Ray cluster has {there:.0f}. Request less, or "
            "set RAY_ADDRESS to a larger cluster."
        )
    return wanted


class RaySlot(Slot):
    """Executes runs in an actor, which is a `LocalSlot`, and replaces the actor if it dies.

    Args:
        ray: The `ray` package.
        options: Resources of the actor.
    """

    def __init__(self, ray: Any, options: dict[str, float]) -> None:
        self.ray, self.options = ray, options
        self.actor: Any = None

    def run(self, job: Job) -> str:
        """Executes a run and returns the worker's reply."""
        if self.actor is None:
            kind = self.ray.remote(LocalSlot)
            kind = kind.options(**self.options, max_concurrency=2, max_restarts=0)
            self.actor = kind.remote(int(self.options["num_cpus"]), cwd=os.getcwd())
        try:
            there = replace(job, folder=job.folder.absolute())
            return str(self.ray.get(self.actor.run.remote(there)))
        except self.ray.exceptions.RayTaskError as error:  # raised by the slot in the actor
            raise error.cause from error
        except self.ray.exceptions.RayError as error:
            self.actor = None
            raise WorkerDiedError(f"its Ray actor is lost ({one_line(error)[:200]})") from error

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


DAY = 24 * 60
"""Default time limit of a job in minutes."""

PAUSE = 1.0
"""Seconds between checks of a job."""


class SlurmEngine(Engine):
    """One Slurm job for each run; the number of slots limits how many are queued at a time.

    All machines need babn, and the run folders and data under the same paths.

    Args:
        resources: Resources of the runs; by default one core and no GPU.
        logs: Folder for the logs of submitit and the jobs.
        options: Further Slurm parameters, such as `partition`, `account` or `time` in minutes.
            `cluster="local"` starts jobs as processes of this machine, for tests.
    """

    def __init__(self, resources: Resources, logs: Path, options: Mapping[str, str]) -> None:
        submitit = import_extra("submitit", "--engine slurm needs submitit", "slurm")
        parameters = dict(options)
        cluster = parameters.pop("cluster", "slurm")
        if cluster not in ("slurm", "local"):
            raise ConfigError(f"cluster={cluster!r} is invalid. Choose slurm or local.")
        if cluster == "slurm" and not (shutil.which("srun") and shutil.which("sbatch")):
            raise ConfigError(
                "--engine slurm needs the commands srun and sbatch, which are not installed here. "
                "Start the sweep on a machine of the cluster, or choose --engine local."
            )
        if resources.gpus not in (None, 0, 1):
            raise ConfigError(f"gpus={resources.gpus} is not supported with Slurm. Give 0 or 1.")
        self.logs = logs
        self.executor = submitit.AutoExecutor(logs, cluster=cluster)
        utils = submitit.core.utils
        self.failures = (utils.UncompletedJobError, utils.FailedSubmissionError)
        self.cpus = resources.cpus or 1
        self._set(int(resources.gpus or 0), parameters)
        self.submitting = threading.Lock()

    def _set(self, gpus: int, options: dict[str, str]) -> None:
        time = options.pop("time", str(DAY))
        if not time.isdigit():
            raise ConfigError(f"time={time!r} is invalid. Give a whole number of minutes.")
        more = {f"slurm_{name}": value for name, value in options.items()}
        try:
            self.executor.update_parameters(
                name="babn",
                timeout_min=int(time),
                cpus_per_task=self.cpus,
                gpus_per_node=gpus,
                **more,
            )
        except NameError as error:
            raise ConfigError(f"--slurm {' '.join(options)}: {one_line(error)}") from error

    def slot(self, number: int) -> "SlurmSlot":
        """Makes a slot."""
        return SlurmSlot(self)

    def submit(self, job: Job, stop: Path) -> Any:
        """Submits a run."""
        folder = job.folder.absolute()
        with self.submitting:  # submitit's executors are not thread-safe
            return self.executor.submit(
                run_job, job.experiment, folder, Path.cwd(), self.cpus, stop.absolute()
            )


class SlurmSlot(Slot):
    """Executes runs as jobs, one at a time.

    Args:
        engine: Submits the jobs.
    """

    def __init__(self, engine: SlurmEngine) -> None:
        self.engine = engine
        self.job: Any = None
        self.stop = engine.logs / f"stop-{uuid.uuid4().hex}"

    def run(self, job: Job) -> str:
        """Executes a run and returns the worker's reply."""
        try:
            self.job = self.engine.submit(job, self.stop)
            while not self.job.done():
                time.sleep(PAUSE)
            return str(self.job.result())
        except self.engine.failures as error:
            raise WorkerDiedError(self._end(error)) from error
        finally:
            self.stop.unlink(missing_ok=True)
            self.job = None

    def _end(self, error: BaseException) -> str:
        """A description of how the job ended."""
        if self.job is None:
            return f"Slurm rejected its job: {one_line(error)[:200]}"
        return f"its job {self.job.job_id} ended as {self.job.state} ({self.job.paths.stderr})"

    def interrupt(self) -> None:
        """Stops the job by a file, or removes it from the queue; the second call cancels it."""
        job = self.job
        if job is None:
            return
        if self.stop.exists() or job.state in ("PENDING", "CONFIGURING"):
            job.cancel(check=False)
        self.stop.touch()

    def close(self) -> None:
        """Does nothing; the job has ended."""


def run_job(experiment: Experiment, folder: Path, cwd: Path, cpus: int, stop: Path) -> str:
    """Executes a run inside a job; sends SIGINT to itself when the file `stop` appears."""
    import torch

    from babn_paper.experiments.worker import do_run

    os.chdir(cwd)
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(cpus)
    threading.Thread(target=_interrupt_when_exists, args=(stop,), daemon=True).start()
    return do_run(experiment, folder)


def _interrupt_when_exists(path: Path) -> None:
    while not path.exists():
        time.sleep(PAUSE)
    os.kill(os.getpid(), signal.SIGINT)
