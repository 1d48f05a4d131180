"""The training loop, which resumes from checkpoints to bit-identical weights."""

import math
import warnings
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from babn.errors import BabnError, BabnWarning
from babn.progress import Progress
from babn_paper.experiments.attention import (
    get_kl_weight,
    joint_kl,
    kl_terms,
    loss_terms,
    set_kl_weight,
)
from babn_paper.experiments.checkpoints import (
    Interrupts,
    checkpoint_folder,
    find_checkpoints,
    load_best,
    load_checkpoint,
    restore_newest,
    save_checkpoint,
    save_if_best,
)
from babn_paper.experiments.cuda_graphs import own_stream
from babn_paper.experiments.distributed import World, current_world
from babn_paper.experiments.evaluation import autocast, predict_part, read_part
from babn_paper.experiments.graph_steps import GraphedStep, LossTerms, StepFunction
from babn_paper.experiments.log import Log, LossMeter
from babn_paper.experiments.run_folder import RunFolder
from babn_paper.experiments.training_state import DEV, MicroBatch, TrainingState, set_rates
from babn_paper.tasks.encoded import Batch

CHECKPOINTS, LINES = 20, 100
"""Checkpoints and log lines of a run; a short run has one per step."""


class TrainingError(BabnError, ArithmeticError):
    """Loss or parameters are no longer finite."""


def train(state: TrainingState, run: RunFolder, progress: Progress) -> None:
    """Trains the model to the end, from the newest checkpoint if there is one.

    The first SIGINT writes a checkpoint and stops; the second one stops at once.
    """
    _Loop(state, run, progress).run_to_end()


class _Loop:
    """The training loop of one run."""

    def __init__(self, state: TrainingState, run: RunFolder, progress: Progress) -> None:
        self.state, self.run, self.progress = state, run, progress
        self.world = current_world()
        self.meter = LossMeter()
        self.start = self._restore()
        self.log = Log(run, self.start) if self.world.is_rank_zero else None
        self.model = self.world.wrap(state.model)
        self.note = ""

    def run_to_end(self) -> None:
        """Takes the remaining steps."""
        steps = self.state.steps
        self.state.model.train()
        self.progress.begin("training", steps, self.start)
        try:
            with Interrupts() as interrupts, ExitStack() as stack:
                step_function = make_step(self.state, self.model, self.world, stack)
                for step in range(self.start, steps):
                    self._step(step, step_function)
                    stop = self.world.any(interrupts.requested)
                    self._after_step(step + 1, stop)
                    if stop and step + 1 < steps:
                        raise KeyboardInterrupt
                    self.progress.step(1, self.note)
            if self.state.experiment.select_epoch:
                load_best(self.run.checkpoints, self.state.model)
        finally:
            if self.log is not None:
                self.log.close()

    def _restore(self) -> int:
        """Restores the newest intact checkpoint and returns its step."""
        model, optimizer, folder = self.state.model, self.state.optimizer, self.run.checkpoints
        # Rank zero decides, since other machines may see an older state of a shared folder.
        step, damaged = self.world.from_rank_zero(lambda: restore_newest(folder, model, optimizer))
        if not step:
            torch.manual_seed(self.state.experiment.seed)
        elif not self.world.is_rank_zero:
            load_checkpoint(checkpoint_folder(folder, step), model, optimizer)
        for error in damaged if self.world.is_rank_zero else []:
            warnings.warn(f"{error} Resuming from step {step}.", BabnWarning, stacklevel=2)
        return step

    def _step(self, step: int, step_function: StepFunction) -> None:
        """Takes one optimizer step and adds its loss to the meter."""
        state, experiment = self.state, self.state.experiment
        self.world.seed_step(experiment.seed, step)
        set_rates(state.optimizer, step, state.steps, state.warmup, experiment.rate_schedule)
        set_kl_weight(state.model, state.annealing, step, state.steps)
        # CUDA graphs write gradients to fixed addresses.
        state.optimizer.zero_grad(set_to_none=not isinstance(step_function, GraphedStep))
        micro_batches = list(state.micro_batches(step, self.world))
        for place, micro in enumerate(micro_batches, 1):
            with self.world.accumulating(self.model, more=place < len(micro_batches)):
                self.meter.add(step + 1, step_function(micro))
        if experiment.clip:
            nn.utils.clip_grad_norm_(state.model.parameters(), experiment.clip)
        state.optimizer.step()
        self.meter.steps += 1

    def _after_step(self, done: int, stop: bool) -> None:
        """Logs, tests and saves a checkpoint if any of these is due."""
        state, steps = self.state, self.state.steps
        if _is_due(done, max(1, steps // LINES), steps):
            self._write_line(done)
        with self.meter.paused():
            if _is_due(done, state.experiment.test_every, steps):
                self._write_scores(done, state.task.test_parts[0])
            if state.experiment.select_epoch and _is_due(done, state.steps_per_epoch, steps):
                self._keep_best(done)
            every = state.experiment.checkpoint_every or math.ceil(steps / CHECKPOINTS)
            if stop or _is_due(done, every, steps):
                self._save(done)

    def _write_scores(self, step: int, part: str) -> dict[str, float]:
        """Logs and returns the measures of a part, at the posterior mean."""
        measures = predict_part(self.state, *read_part(self.state, part)).measure()
        if self.log is not None:
            scores = {f"{part}/{name}": value for name, value in measures.items()}
            self.log.write({"step": step, **scores})
        return measures

    def _keep_best(self, step: int) -> None:
        """Saves the model if its NLL on the development data is the lowest so far."""
        nll = self._write_scores(step, DEV)["NLL"]
        folder, model = self.run.checkpoints, self.state.model
        self.world.from_rank_zero(lambda: save_if_best(folder, step, nll, model))

    def _write_line(self, step: int) -> None:
        state, means = self.state, self.meter.means(self.world)
        self._check_finite(step)
        layers = {name: value for name, value in means.items() if name.startswith("kl/")}
        kl = float(sum(layers.values()))
        line: dict[str, Any] = {
            "step": step,
            "epoch": step / state.steps_per_epoch,
            "loss": means["loss"],
            "nll": means["nll"],
            "kl": kl,
            "kl_weight": get_kl_weight(state.model),  # of the last step
            "learning_rate": float(state.optimizer.param_groups[0]["lr"]),
            "seconds_per_step": self.meter.seconds_per_step,
        }
        if state.words_per_step is not None:
            line["words_per_second"] = state.words_per_step / line["seconds_per_step"]
        if self.log is not None:
            self.log.write(line | layers)
        self.note = f"loss {means['loss']:.3f}  kl {kl:.3f}"
        self.meter.reset()

    def _save(self, step: int) -> None:
        """Saves a checkpoint if loss and parameters are finite."""
        self._check_finite(step)
        model = self.state.model
        bad = [name for name, p in model.named_parameters() if not p.isfinite().all()]
        if bad:
            raise self._not_finite(f"{bad[0]} is not finite after step {step}")
        if self.world.is_rank_zero:
            save_checkpoint(self.run.checkpoints, step, model, self.state.optimizer)

    def _check_finite(self, step: int) -> None:
        """Stops all ranks if the loss of one of them is not finite."""
        if self.world.any(self.meter.first_bad() is not None):
            raise self._not_finite(f"The loss of another process is not finite by step {step}")

    def _not_finite(self, problem: str) -> TrainingError:
        if found := self.meter.first_bad():
            step, name = found
            term = f"KL of {name.removeprefix('kl/')}" if name.startswith("kl/") else "loss"
            problem = f"The {term} is not finite at step {step}"
        kept = [kept for kept, _ in find_checkpoints(self.run.checkpoints)]
        good = f"The checkpoint of step {kept[0]} is intact" if kept else "No checkpoint was saved"
        return TrainingError(
            f"{problem}, with method={self.state.experiment.method!r}. Lower learning_rate or "
            f"kl_weight, or look for a damaged example in the batch of that step. {good}."
        )


def _is_due(step: int, every: int, steps: int) -> bool:
    return every > 0 and (step % every == 0 or step == steps)


def make_step(
    state: TrainingState, model: nn.Module, world: World, stack: ExitStack
) -> StepFunction:
    """The step function: eager, or replayed as CUDA graphs if the experiment uses them.

    Args:
        state: Model, data and optimizer.
        model: The model as wrapped for several processes.
        world: The processes; CUDA graphs need a single one.
        stack: Leaves the CUDA stream of the graphs when training ends.
    """
    eager = partial(backward, state, model)
    if not state.experiment.graphs or state.device.type != "cuda" or world.size > 1:
        return eager
    stack.enter_context(own_stream(state.device))
    return GraphedStep(eager)


def backward(state: TrainingState, model: nn.Module, micro: MicroBatch) -> LossTerms:
    """Adds the gradients of a micro-batch and returns the terms of its loss."""
    with autocast(state.experiment, state.device), joint_kl(state.model, micro.weight):
        output = model(**micro.batch)
        smoothing = _label_smoothing(state, output, micro.batch)
    nll, weighted_kl = loss_terms(state.model, output, micro.batch)
    nll = nll + smoothing
    loss = (nll + weighted_kl) * (share := micro.share * micro.weight)
    loss.backward()
    layers = {f"kl/{name}": kl for name, kl in kl_terms(state.model, output).items()}
    return {"loss": loss} | {n: x * share for n, x in {"nll": nll, **layers}.items()}


def _label_smoothing(state: TrainingState, output: Any, batch: Batch) -> Tensor | float:
    """The difference that label smoothing makes to the cross-entropy of a classifier."""
    amount = state.experiment.label_smoothing
    if not amount:
        return 0.0
    logits, labels = state.task.output(output).float(), batch["labels"]
    uniform = F.cross_entropy(logits, labels, label_smoothing=1.0)
    return amount * (uniform - F.cross_entropy(logits, labels))
