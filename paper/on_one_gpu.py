"""Runs grids on one GPU, many runs at a time, within a time limit.

    python paper/on_one_gpu.py paper/sweeps/NAME.toml ... --data DIR --out FOLDER
        [--jobs 14] [--limit SECONDS] [--set NAME=VALUE] [--known FOLDER]

A single small run does not fill a GPU, and processes share one only through CUDA's multi-process
service, which is started if it is installed. FOLDER gets a NAME.json without paths for each grid,
even if the time limit ended it; `paper/result_files.py` makes a compact file of it. Results in the
folder of --known are copied to the new file instead of being computed again.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from result_files import load_records

from babn_paper.experiments.experiment import Experiment
from babn_paper.experiments.run_folder import RunFolder, write_json

SERVICE = "nvidia-cuda-mps-control"
REPORT_EVERY = 30
GRACE = 25
"""Seconds between messages, and seconds for writing checkpoints at the time limit."""


@contextmanager
def shared_gpu() -> Iterator[None]:
    """Starts the multi-process service, if it is installed, for the block."""
    if shutil.which(SERVICE) is None:
        yield
        return
    subprocess.run([SERVICE, "-d"], check=False)
    try:
        yield
    finally:
        subprocess.run([SERVICE], input="quit\n", text=True, check=False)


def sweep(grids: Sequence[Path], args: argparse.Namespace, *more: str) -> list[str]:
    """The command that runs some grids."""
    settings = [word for each in args.set for word in ("--set", each)]
    start = [sys.executable, "-W", "ignore", "-m", "babn_paper", "sweep", *map(str, grids)]
    return [*start, "--data", args.data, *settings, *more]


def run(args: argparse.Namespace) -> bool:
    """Runs the grids up to the time limit; returns whether all of them succeeded."""
    begun = reported = time.monotonic()
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    with subprocess.Popen(
        sweep(args.grids, args, "--jobs", str(args.jobs)),
        stdout=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    ) as process:
        try:
            while process.poll() is None and time.monotonic() < begun + args.limit:
                time.sleep(0.5)
                if time.monotonic() - reported > REPORT_EVERY:
                    reported = time.monotonic()
                    print(f"  {reported - begun:4.0f} s: {_counts(args.grids)}", flush=True)
        finally:  # also after Ctrl-C, which does not reach the runs
            in_time = process.poll() is not None
            if not in_time:
                stop(process)
    print(f"{_counts(args.grids)} runs done, {time.monotonic() - begun:.0f} s", flush=True)
    return in_time and process.returncode == 0


def stop(process: "subprocess.Popen[bytes]") -> None:
    """Interrupts runs, which then write a checkpoint, and kills them if they do not end."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)


def restore(grid: Path, known: Path, data: str) -> None:
    """Makes folders of finished runs from their records, without predictions and models."""
    records, _ = load_records(known)
    for record in records:
        seed = record.experiment["seed"]
        folder = RunFolder(Path("runs", grid.stem, record.label, f"seed-{seed}"))
        if (
            record.results
            and record.experiment["method"] != "ensemble"
            and folder.state == "absent"
        ):
            experiment = Experiment.from_dict({**record.experiment, "data": data})
            folder.begin(experiment)
            write_json(folder.environment, record.environment)
            write_json(folder.results, record.results)


def with_ensembles(found: dict[str, Any], known: Path) -> dict[str, Any]:
    """Results with the known ensembles of restored runs, each behind its members."""
    runs = list(found["runs"])
    for record in load_records(known)[0]:
        labels = [run["label"] for run in runs]
        if record.experiment["method"] == "ensemble" and record.label not in labels:
            members = record.label.replace("-ensemble", "-softmax")
            runs.insert(len(labels) - labels[::-1].index(members), asdict(record))
    return {**found, "runs": runs}


def _counts(grids: Sequence[Path]) -> str:
    return ", ".join(f"{grid.stem} {finished(grid)}" for grid in grids)


def finished(grid: Path) -> int:
    """The number of runs of a grid that have results."""
    return len(list(Path("runs", grid.stem).glob("*/seed-*/results.json")))


def published(text: str, args: argparse.Namespace) -> dict[str, Any]:
    """Results of a sweep without paths, with the command that repeats them."""
    for setting in args.set:
        _, _, value = setting.partition("=")
        if "/" in value:
            text = text.replace(value, Path(value).name)
    found: dict[str, Any] = json.loads(text.replace(args.data, "DIR"))
    grid = found["command"].split("sweep ")[1].split()[0]
    found["command"] = f"babn sweep {grid} --data DIR --jobs {args.jobs}"
    return found


def main() -> None:
    """Runs the grids and writes their results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("grids", type=Path, nargs="+")
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=14)
    parser.add_argument("--limit", type=float, default=float("inf"))
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--known", type=Path)
    args = parser.parse_args()
    if missing := [str(grid) for grid in args.grids if not grid.is_file()]:
        parser.error(f"{', '.join(missing)} cannot be found")
    args.out.mkdir(parents=True, exist_ok=True)
    taken = {grid: args.known / f"{grid.stem}.json" for grid in args.grids if args.known}
    known = {grid: file for grid, file in taken.items() if file.exists()}
    for grid, file in known.items():
        restore(grid, file, args.data)
    with shared_gpu():
        whole = run(args)
    begun = [grid for grid in args.grids if finished(grid)]
    if begun and not whole:
        # What was cut off, here or from outside, has yet to collect its results.
        subprocess.run(sweep(begun, args, "--show"), stdout=subprocess.DEVNULL, check=False)
    for grid in begun:
        text = Path("runs", grid.stem, "results.json").read_text(encoding="utf-8")
        found = published(text, args)
        if grid in known:
            found = with_ensembles(found, known[grid])
        write_json(args.out / f"{grid.stem}.json", found)


if __name__ == "__main__":
    main()
