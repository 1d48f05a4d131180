"""Checkpoints of model, optimizer and random states, from which training resumes exactly.

`Interrupts` defers SIGINT and SIGTERM to the next checkpoint.
"""

import re
import shutil
import signal
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from babn.errors import FormatError, MismatchError, StorageError, one_line
from babn.files import flush
from babn.tensor_files import read_tensors, write_tensors


class Interrupts:
    """Records the first SIGINT within its block; the second one interrupts as usual.

    SIGTERM, by which batch systems and torchrun end processes, is handled in the same way.

    Example:
        with Interrupts() as interrupts:
            while not interrupts.requested:
                ...
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


FILE, BEST, KEPT = "state.safetensors", "best.safetensors", 2
NAME = re.compile(r"step-(\d+)")


def save_checkpoint(folder: Path, step: int, model: nn.Module, optimizer: Optimizer) -> None:
    """Writes a checkpoint and deletes all but the newest two."""
    tensors = {f"model/{name}": x for name, x in model.state_dict().items()}
    tensors |= {f"optimizer/{name}": x for name, x in _optimizer_tensors(optimizer).items()}
    tensors |= {f"random/{name}": x for name, x in _random_states().items()}
    # safetensors does not allow shared memory, which tied weights have.
    tensors = {name: x.detach().cpu().clone() for name, x in tensors.items()}
    partial, final = folder / ".partial", checkpoint_folder(folder, step)
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        write_tensors(partial / FILE, tensors, {"step": str(step)})
        _drop(final)
        partial.rename(final)
        flush(folder)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)  # frees disk space
        raise StorageError(
            f"The checkpoint of step {step} cannot be written to {folder}: "
            f"{one_line(error.__cause__ or error)}. Free disk space or make the folder writable; "
            "earlier checkpoints are intact, and --resume continues from them."
        ) from error
    for _, old in find_checkpoints(folder)[KEPT:]:
        _drop(old)


def checkpoint_folder(folder: Path, step: int) -> Path:
    """The folder of the checkpoint of a step."""
    return folder / f"step-{step}"


def _drop(checkpoint: Path) -> None:
    """Renames a checkpoint before it is deleted, so that a `step-N` folder is always complete."""
    dropped = checkpoint.with_name(".dropped")
    shutil.rmtree(dropped, ignore_errors=True)
    with suppress(OSError):
        checkpoint.rename(dropped)
    shutil.rmtree(dropped, ignore_errors=True)


def find_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Step and folder of each complete checkpoint, newest first."""
    names = folder.iterdir() if folder.is_dir() else []
    found = [(match, path) for path in names if (match := NAME.fullmatch(path.name))]
    return sorted(((int(match[1]), path) for match, path in found), reverse=True)


def restore_newest(
    folder: Path, model: nn.Module, optimizer: Optimizer
) -> tuple[int, list[FormatError]]:
    """Restores the newest intact checkpoint.

    Returns:
        Its step, 0 if there is no checkpoint, and the errors of newer, damaged checkpoints.
    """
    damaged: list[FormatError] = []
    for step, checkpoint in find_checkpoints(folder):
        try:
            load_checkpoint(checkpoint, model, optimizer)
            return step, damaged
        except FormatError as error:
            damaged.append(error)
    if damaged:
        found = " ".join(str(error) for error in damaged)
        raise FormatError(
            f"No checkpoint in {folder} is intact. {found} Start again with --overwrite."
        )
    return 0, []


def load_checkpoint(folder: Path, model: nn.Module, optimizer: Optimizer) -> None:
    """Restores model, optimizer and random states from a checkpoint."""
    tensors, about = read_tensors(folder / FILE)
    if f"step-{about.get('step')}" != folder.name:
        raise FormatError(f"{folder} holds the checkpoint of step {about.get('step')}.")
    try:
        model.load_state_dict(_under("model/", tensors))
        _load_optimizer(optimizer, _under("optimizer/", tensors))
        _set_random_states(_under("random/", tensors))
    except (RuntimeError, ValueError, KeyError) as error:
        raise MismatchError(
            f"{folder} does not fit the model: {one_line(error)} Resume with the versions and the "
            "data that the run was started with, or start again with --overwrite."
        ) from error


def save_if_best(folder: Path, step: int, nll: float, model: nn.Module) -> None:
    """Saves the parameters of a step unless an earlier step with an NLL as low is saved."""
    path = folder / BEST
    before = read_tensors(path)[1] if path.exists() else {}
    # A resumed run repeats steps, so that parameters of later steps do not count.
    if int(before.get("step", step)) < step and float(before["nll"]) <= nll:
        return
    tensors = {name: x.detach().cpu().clone() for name, x in model.state_dict().items()}
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(path, tensors, {"step": str(step), "nll": repr(nll)})


def load_best(folder: Path, model: nn.Module) -> None:
    """Restores the parameters that `save_if_best` kept."""
    model.load_state_dict(read_tensors(folder / BEST)[0])


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): x for n, x in tensors.items() if n.startswith(prefix)}


def _optimizer_tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    """The optimizer state of each parameter, by parameter index and name."""
    state: dict[int, dict[str, Any]] = optimizer.state_dict()["state"]
    return {
        f"{place}/{name}": value
        for place, values in state.items()
        for name, value in values.items()
        if isinstance(value, Tensor)
    }


def _load_optimizer(optimizer: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        place, _, key = name.partition("/")
        state.setdefault(int(place), {})[key] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _random_states() -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _set_random_states(states: Mapping[str, Tensor]) -> None:
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
