"""Training: the same steps in the same order, whether interrupted or not."""

import math
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from babn.cuda_graphs import own_stream
from babn.errors import BabnError, BabnWarning
from babn.interrupts import Interrupts
from babn.progress import Progress
from babn_paper.experiments.attention import (
    divergences,
    get_weight,
    joint_divergence,
    loss_terms,
    set_weight,
)
from babn_paper.experiments.checkpoints import (
    checkpoint_folder,
    find_checkpoints,
    load_checkpoint,
    restore_newest,
    save_checkpoint,
)
from babn_paper.experiments.log import Log
from babn_paper.experiments.optimizer import set_rates
from babn_paper.experiments.processes import Processes, processes
from babn_paper.experiments.replay import Replayed, Take
from babn_paper.experiments.run_folder import RunFolder
from babn_paper.experiments.stage import Portion, Stage
from babn_paper.experiments.testing import answer, autocast
from babn_paper.tasks.encoded import Batch

CHECKPOINTS, LINES = 20, 100
"""Checkpoints and log lines of a run, unless it is too short for as many."""


class TrainingError(BabnError, ArithmeticError):
    """Training has left the finite numbers."""


def train(stage: Stage, run: RunFolder, progress: Progress) -> None:
    """Trains the stage's model to the end, from the newest checkpoint if there is one.

    The first Ctrl-C writes a checkpoint and stops, the second one stops at once.
    """
    own = processes()
    start = _restore(stage, run, own)
    log = Log(run, start) if own.first else None
    sums = _Sums()
    stage.model.train()
    progress.begin("training", stage.steps, start)
    try:
        with Interrupts() as interrupts, ExitStack() as stack:
            taker = _taker(stage, own, stack)
            for step in range(start, stage.steps):
                _note_step(stage, step, sums, taker, own)
                done, asked = step + 1, own.any(interrupts.requested)
                if done % max(1, stage.steps // LINES) == 0 or done == stage.steps:
                    _write_line(stage, run, done, sums, log, own)
                with sums.paused():
                    if _is_due(done, stage.experiment.test_every, stage.steps):
                        tested = _tested(stage)
                        if log is not None:
                            log.write({"step": done, **tested})
                    if asked or _is_due(done, _checkpoint_every(stage), stage.steps):
                        _save(stage, run, done, sums, own)
                if asked and done < stage.steps:
                    raise KeyboardInterrupt
                progress.step(1, sums.note)
    finally:
        if log is not None:
            log.close()


def _restore(stage: Stage, run: RunFolder, own: Processes) -> int:
    """Goes back to the newest whole checkpoint, and returns its step."""
    # The first process says which: others may see an older state of a shared folder.
    step, damaged = own.lead(lambda: restore_newest(run.checkpoints, stage.model, stage.optimizer))
    if not step:
        torch.manual_seed(stage.experiment.seed)
    elif not own.first:
        load_checkpoint(checkpoint_folder(run.checkpoints, step), stage.model, stage.optimizer)
    for error in damaged if own.first else []:
        warnings.warn(f"{error} Going on from step {step}.", BabnWarning, stacklevel=2)
    return step


def _save(stage: Stage, run: RunFolder, step: int, sums: "_Sums", own: Processes) -> None:
    """Writes a checkpoint, unless the model has left the finite numbers."""
    _check_finite(stage, run, step, sums, own)
    bad = [name for name, p in stage.model.named_parameters() if not p.isfinite().all()]
    if bad:
        raise _left(stage, run, sums, f"{bad[0]} is not finite after step {step}")
    if own.first:
        save_checkpoint(run.checkpoints, step, stage.model, stage.optimizer)


def _check_finite(stage: Stage, run: RunFolder, step: int, sums: "_Sums", own: Processes) -> None:
    """Stops all processes if one of them has left the finite numbers."""
    if own.any(sums.first_bad() is not None):
        elsewhere = f"The loss of another process is not finite by step {step}"
        raise _left(stage, run, sums, elsewhere)


def _left(stage: Stage, run: RunFolder, sums: "_Sums", what: str = "") -> TrainingError:
    """What to say when training has left the finite numbers."""
    if found := sums.first_bad():
        step, name = found
        term = f"KL of {name.removeprefix('kl/')}" if name.startswith("kl/") else "loss"
        what = f"The {term} is not finite at step {step}"
    kept = [kept for kept, _ in find_checkpoints(run.checkpoints)]
    good = f"the checkpoint of step {kept[0]} is from before" if kept else "no checkpoint has it"
    return TrainingError(
        f"{what}, under rule={stage.experiment.rule!r}. Lower learning_rate or kl_weight, or look "
        f"for a damaged example in that step's batch; {good}."
    )


def _is_due(step: int, every: int, steps: int) -> bool:
    return every > 0 and (step % every == 0 or step == steps)


def _checkpoint_every(stage: Stage) -> int:
    return stage.experiment.checkpoint_every or math.ceil(stage.steps / CHECKPOINTS)


class _Sums:
    """Terms of the loss since the last line of the log; they stay on the device until asked for."""

    def __init__(self) -> None:
        self.note = ""
        self.names: list[str] = []
        self.clear()

    def clear(self) -> None:
        self.total: Tensor | None = None
        self.bad: Tensor | None = None
        self.steps, self.since = 0, time.perf_counter()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What happens inside does not count as training time."""
        begin = time.perf_counter()
        yield
        self.since += time.perf_counter() - begin

    def add(self, step: int, terms: dict[str, Tensor]) -> None:
        self.names = list(terms)
        values = torch.stack([term.detach().float() for term in terms.values()])
        self.total = values if self.total is None else self.total + values
        bad = torch.where(values.isfinite(), torch.inf, float(step))
        self.bad = bad if self.bad is None else self.bad.minimum(bad)

    def first_bad(self) -> tuple[int, str] | None:
        """The first step whose terms were not all finite, and which of them, if there was one."""
        found = [] if self.bad is None else self.bad.tolist()
        step = min(found, default=math.inf)
        if step == math.inf:
            return None
        # The loss is the sum of the others, which say more; the KL of a layer says the most.
        return int(step), self.names[len(found) - 1 - found[::-1].index(step)]

    def means(self, own: Processes) -> dict[str, float]:
        assert self.total is not None
        means = own.mean(self.total) / self.steps
        return dict(zip(self.names, means.tolist(), strict=True))


@dataclass(frozen=True)
class _Taker:
    """Adds the gradients of a part of a step's batch.

    Attributes:
        model: The model, joined with those of other processes.
        take: Adds the gradients, and returns the terms of the loss.
        replayed: Whether gradients have to stay where they are.
    """

    model: nn.Module
    take: Take
    replayed: bool = False


def _taker(stage: Stage, own: Processes, stack: ExitStack) -> _Taker:
    model = own.joined(stage.model)
    take = partial(_backward, stage, model)
    if not stage.experiment.graphs or stage.device.type != "cuda" or own.count > 1:
        return _Taker(model, take)
    stack.enter_context(own_stream(stage.device))
    return _Taker(model, Replayed(take), replayed=True)


def _note_step(stage: Stage, step: int, sums: _Sums, taker: _Taker, own: Processes) -> None:
    """Takes a step, and notes its loss."""
    own.seed_step(stage.experiment.seed, step)
    schedule = stage.experiment.rate_schedule
    set_rates(stage.optimizer, step, stage.steps, stage.warmup, schedule)
    set_weight(stage.model, stage.annealing, step, stage.steps)
    stage.optimizer.zero_grad(set_to_none=not taker.replayed)
    portions = list(stage.batches(step, own))
    for place, portion in enumerate(portions, 1):
        with own.accumulating(taker.model, more=place < len(portions)):
            sums.add(step + 1, taker.take(portion))
    if stage.experiment.clip:
        nn.utils.clip_grad_norm_(stage.model.parameters(), stage.experiment.clip)
    stage.optimizer.step()
    sums.steps += 1


def _backward(stage: Stage, model: nn.Module, portion: Portion) -> dict[str, Tensor]:
    """Adds the gradients of a part of a step's batch, and returns the terms of the loss."""
    with autocast(stage.experiment, stage.device), joint_divergence(stage.model, portion.weight):
        output = model(**portion.batch)
        smoothing = _smoothing(stage, output, portion.batch)
    nll, weighted_kl = loss_terms(stage.model, output)
    nll = nll + smoothing
    loss = (nll + weighted_kl) * (share := portion.share * portion.weight)
    loss.backward()
    layers = {f"kl/{name}": kl for name, kl in divergences(stage.model, output).items()}
    return {"loss": loss} | {n: x * share for n, x in {"nll": nll, **layers}.items()}


def _smoothing(stage: Stage, output: Any, batch: Batch) -> Tensor | float:
    """What label smoothing adds to the loss of a classifier."""
    amount = stage.experiment.label_smoothing
    if not amount:
        return 0.0
    logits, labels = stage.task.output(output).float(), batch["labels"]
    even = F.cross_entropy(logits, labels, label_smoothing=1.0)
    return amount * (even - F.cross_entropy(logits, labels))


def _write_line(
    stage: Stage, run: RunFolder, step: int, sums: _Sums, log: Log | None, own: Processes
) -> None:
    means = sums.means(own)
    _check_finite(stage, run, step, sums, own)
    kl = sum(value for name, value in means.items() if name.startswith("kl/"))
    line: dict[str, Any] = {
        "step": step,
        "epoch": step / stage.steps_per_epoch,
        "loss": means["loss"],
        "nll": means["nll"],
        "kl": float(kl),
        "kl_weight": get_weight(stage.model),  # of the last step
        "learning_rate": float(stage.optimizer.param_groups[0]["lr"]),
        "seconds_per_step": (time.perf_counter() - sums.since) / sums.steps,
    }
    if stage.words_per_step is not None:
        line["words_per_second"] = stage.words_per_step / line["seconds_per_step"]
    if log is not None:
        log.write(line | {name: value for name, value in means.items() if name.startswith("kl/")})
    sums.note = f"loss {means['loss']:.3f}  kl {kl:.3f}"
    sums.clear()


def _tested(stage: Stage) -> dict[str, float]:
    """The scores of the development data at the posterior mean."""
    part = stage.task.test_parts[0]
    measured = answer(stage, part).measure()
    return {f"{part}/{name}": value for name, value in measured.items()}
