"""AdamW with parameter groups, and the learning rate schedules."""

from torch import nn
from torch.optim import AdamW, Optimizer

from babn.conversion.state import own_state
from babn_paper.experiments.experiment import Experiment


def make_optimizer(model: nn.Module, experiment: Experiment) -> Optimizer:
    """AdamW with a separate rate for added parameters and no weight decay of vectors.

    Vectors are biases and scales. Added parameters are those that conversion adds.
    """
    states = [state for module in model.modules() if (state := own_state(module)) is not None]
    belief = {id(p) for state in states for p in state.parameters()}
    rates = {False: experiment.learning_rate, True: experiment.belief_rate}
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            key = id(parameter) in belief, parameter.ndim > 1
            groups.setdefault(key, []).append(parameter)
    settings = [
        {
            "params": parameters,
            "peak": rates[added] or experiment.learning_rate,
            "weight_decay": experiment.weight_decay * matrix,
        }
        for (added, matrix), parameters in groups.items()
    ]
    return AdamW(settings, lr=0.0, betas=(0.9, float(experiment.beta2)), fused=True)


def set_rates(
    optimizer: Optimizer, step: int, steps: int, warmup: int, schedule: str = "linear"
) -> float:
    """Sets the learning rate of every group for a step; returns it as a fraction of the peak."""
    mcan = schedule == "mcan"
    share = mcan_schedule(step, steps) if mcan else linear_schedule(step, steps, warmup)
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * share
    return share


def linear_schedule(step: int, steps: int, warmup: int) -> float:
    """Linear warmup and linear decay of the learning rate, as a fraction of the peak."""
    warmup = max(1, min(warmup, steps))
    return min((step + 1) / warmup, (steps - step) / (steps - warmup + 1))


def mcan_schedule(step: int, steps: int) -> float:
    """MCAN's learning rate schedule over 13 epochs, as a fraction of the peak.

    The rate is 1/4, 2/4 and 3/4 of the peak in the first three epochs and the peak from the fourth
    on. After the tenth epoch, and after every second one that follows, it is divided by 5.
    """
    epoch = 1 + 13 * step // steps
    falls = max(0, -(-(epoch - 10) // 2))
    return float(min(1.0, epoch / 4) * 0.2**falls)
