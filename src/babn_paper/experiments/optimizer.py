"""How parameters are moved: AdamW, with rates that grow and fall."""

from torch import nn
from torch.optim import AdamW, Optimizer

from babn.conversion.state import own_state
from babn_paper.experiments.experiment import Experiment


def make_optimizer(model: nn.Module, experiment: Experiment) -> Optimizer:
    """AdamW with a rate of its own for what conversion added, and no decay of biases and scales."""
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
    """Sets every group's rate for a step, and returns the share of its peak."""
    if schedule == "mcan":
        share = in_thirteenths(step, steps)
    else:
        share = rise_and_fall(step, steps, warmup)
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * share
    return share


def rise_and_fall(step: int, steps: int, warmup: int) -> float:
    """Linear warmup, then linear decay: the share of its peak that the rate has at a step."""
    warmup = max(1, min(warmup, steps))
    return min((step + 1) / warmup, (steps - step) / (steps - warmup + 1))


def in_thirteenths(step: int, steps: int) -> float:
    """MCAN's schedule: with 13 epochs, one quarter of the peak in the first, two in the second ...

    From the fourth epoch on the rate is at its peak; after the tenth it is a fifth of what it was
    before, and so after every second one.
    """
    epoch = 1 + 13 * step // steps
    falls = max(0, -(-(epoch - 10) // 2))
    return float(min(1.0, epoch / 4) * 0.2**falls)
