"""The Hugging Face Trainer for converted models."""

import ast
import inspect as python_inspect
import textwrap
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import Trainer

from babn.conversion.override import overriding
from babn.conversion.state import belief_states
from babn.elbo import KLAnnealing, get_kl_weight, kl_per_layer, nll_factor
from babn.errors import ConfigError
from babn.validation import check_at_least


class BeliefTrainerMixin(Trainer):
    """Adds the weighted KL to the loss of any Trainer, so that it minimises the negative ELBO.

    A converted model adds the KL to its own loss. Under a Trainer, this fails in three cases,
    which this mixin handles: label smoothing and custom losses bypass the model's loss; losses that
    are normalised over accumulated batches count the KL once for each batch; and losses averaged
    over the tokens of all processes are multiplied by the number of processes.

    Args:
        annealing: Schedule of the KL's weight; by default linear from zero to the configuration's
            `kl_weight` over the first half of training.
        belief_learning_rate: Learning rate of the parameters that conversion added, which follows
            the Trainer's schedule; by default that of the other parameters. They have no weight
            decay, unless you pass your own optimizer.

    Example:
        class MyTrainer(BeliefTrainerMixin, Seq2SeqTrainer): ...
    """

    def __init__(
        self,
        *args: Any,
        annealing: KLAnnealing | None = None,
        belief_learning_rate: float | None = None,
        **kwargs: Any,
    ) -> None:
        if belief_learning_rate is not None:
            check_at_least("belief_learning_rate", belief_learning_rate, 0.0, strictly=True)
        super().__init__(*args, **kwargs)
        if belief_learning_rate is not None and self.optimizer is not None:
            raise ConfigError(
                f"belief_learning_rate={belief_learning_rate} with your own optimizer is not "
                "supported. Give the parameters of model.babn a group with this rate there."
            )
        self.belief_learning_rate = belief_learning_rate
        if self.args.n_gpu > 1:
            raise ConfigError(
                f"{self.args.n_gpu} GPUs in one process: DataParallel cannot collect the KL. Start "
                "one process for each GPU with torchrun, or set CUDA_VISIBLE_DEVICES=0."
            )
        converted = cast(nn.Module, self.model)
        belief_states(converted)  # raises if the model is not converted
        self.annealing = annealing or KLAnnealing()
        if not normalizes_over_items(converted):
            self.model_accepts_loss_kwargs = False
        self._sums: dict[str, Tensor] = {}
        self._steps = 0.0

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """Creates the optimizer, with separate groups for parameters that conversion added."""
        given = self.optimizer is not None
        optimizer = super().create_optimizer(*(() if model is None else (model,)))
        if not given:
            states = belief_states(cast(nn.Module, self.model if model is None else model))
            added = {parameter for state in states for parameter in state.parameters()}
            separate(optimizer, added, self.belief_learning_rate)
        return optimizer

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Computes the negative ELBO in training, and the NLL in evaluation."""
        if model.training:
            self.annealing.apply(model, self.state.global_step, self.state.max_steps)
        targets = dict(inputs)  # label smoothing and custom losses remove the labels
        with overriding(model, add_kl=False):
            loss, outputs = super().compute_loss(
                model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch
            )
        if model.training:
            loss = self._with_kl(model, loss, targets, num_items_in_batch)
        return (loss, outputs) if return_outputs else loss

    def _with_kl(
        self, model: nn.Module, loss: Tensor, inputs: dict[str, Any], num_items: Any
    ) -> Tensor:
        layers = kl_per_layer(model)
        if not layers:
            return loss
        kl = torch.stack(list(layers.values())).sum()
        covered = self._loss_covers_accumulation(num_items)
        batches = self._micro_batches if covered else 1
        loss = loss * self._nll_factor(model, inputs, num_items if covered else None)
        terms = {"nll": loss * batches, "kl": kl}
        self._note(terms | {f"kl/{name}": value for name, value in layers.items()})
        return loss + belief_states(model)[0].kl_weight * kl / batches

    def _nll_factor(
        self, model: nn.Module, inputs: dict[str, Any], num_items: Any
    ) -> Tensor | float:
        """Converts the loss to the NLL of an example, averaged over the batch of a step.

        Args:
            model: The model.
            inputs: Its arguments, targets included.
            num_items: The number of tokens of a step that the loss is divided by, if it is.
        """
        reduction = belief_states(model)[0].config.kl_reduction
        factor = nll_factor(self.accelerator.unwrap_model(model), inputs, reduction)
        if num_items is None or not isinstance(factor, Tensor):
            return factor
        together = self.args.average_tokens_across_devices
        processes = self.args.world_size if together else 1
        return num_items / (len(inputs["labels"]) * self._micro_batches * processes)

    def _loss_covers_accumulation(self, num_items: Any) -> bool:
        """Whether the Trainer leaves this loss undivided when it accumulates gradients."""
        declared = getattr(self, "loss_is_scaled_for_ga", None)
        if declared is not None:
            return bool(declared)
        accepts = self.model_accepts_loss_kwargs and num_items is not None
        return bool(accepts or self.compute_loss_func is not None)

    @property
    def _micro_batches(self) -> int:
        """Micro-batches of the current step; the last step of an epoch may have fewer."""
        return int(getattr(self, "current_gradient_accumulation_steps", 1))  # set by `train`

    def _note(self, values: dict[str, Tensor]) -> None:
        """Adds the terms of a micro-batch, weighted so that every step counts the same."""
        share = 1 / self._micro_batches
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0.0) + share * value.detach().float()
        self._steps += share

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Adds NLL, KL, KL of each layer and KL weight to training logs."""
        if "loss" in logs and self._steps:
            means = torch.stack(list(self._sums.values())) / self._steps
            means = self.accelerator.reduce(means, reduction="mean").tolist()
            logs |= dict(zip(self._sums, means, strict=True))
            logs["kl_weight"] = get_kl_weight(cast(nn.Module, self.model))
            self._sums, self._steps = {}, 0.0
        super().log(logs, *args, **kwargs)


class BeliefTrainer(BeliefTrainerMixin):
    """A Hugging Face `Trainer` for converted models; see `BeliefTrainerMixin`."""


def separate(
    optimizer: torch.optim.Optimizer, parameters: set[nn.Parameter], learning_rate: float | None
) -> None:
    """Moves parameters of an optimizer to new groups without weight decay.

    Args:
        optimizer: The optimizer, before its first step.
        parameters: The parameters to move; those that the optimizer does not have are ignored.
        learning_rate: The rate of these groups; `None` keeps that of the groups they come from.
    """
    own = {"weight_decay": 0.0} | ({} if learning_rate is None else {"lr": learning_rate})
    moved = []
    for group in optimizer.param_groups:
        taken = [p for p in group["params"] if p in parameters]
        if taken:
            group["params"] = [p for p in group["params"] if p not in parameters]
            moved.append({**group, "params": taken, **own})
    for group in moved:
        optimizer.add_param_group(group)
    if learning_rate is not None and not moved:
        raise ConfigError(
            f"belief_learning_rate={learning_rate}, but {type(optimizer).__name__} trains none of "
            "the parameters that conversion added. Leave it out, or let them require gradients."
        )


def normalizes_over_items(model: nn.Module) -> bool:
    """Whether a model's loss uses `num_items_in_batch`, inferred from its source.

    The Trainer assumes so for every forward that takes keyword arguments, and then does not divide
    the loss by the number of accumulated batches; many classifiers take the number and ignore it.
    """
    try:
        source = textwrap.dedent(python_inspect.getsource(python_inspect.unwrap(model.forward)))
        calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    except (OSError, TypeError, SyntaxError):
        return True
    losses = [call for call in calls if ast.unparse(call.func) == "self.loss_function"]
    return any(keyword.arg is None for call in losses for keyword in call.keywords)
