"""The rules side by side."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from babn.attention.bam import BamConfig
from babn.attention.belief import BeliefConfig
from babn.attention.layers import normalized_layers
from babn.attention.rule import RuleConfig
from babn.conversion.plan import Call, choose
from babn.estimate.costs import Part, Plan, parts
from babn.estimate.memory import Memory, memory
from babn.estimate.shapes import Shape
from babn.estimate.workload import Workload
from babn.validation import check_at_least

GIB = 2**30
COLUMNS = ("rule", "added", "GiB", "of pairs", "TFLOP", "ms", "x softmax")
"""Parameters that the rule adds, memory in all and of query-key pairs, work, and time."""


@dataclass(frozen=True)
class Machine:
    """A machine by its peaks; by default one NVIDIA H200 by its data sheet.

    Attributes:
        bandwidth: Memory bandwidth in TB/s.
        tflops: Matrix products in half precision in TFLOP/s.
        tips: Instructions for single numbers in trillions a second: multiprocessors times 128 times
            their clock rate.
    """

    bandwidth: float = 4.8
    tflops: float = 989.0
    tips: float = 29.7

    def __post_init__(self) -> None:
        """Refuses a machine that does nothing."""
        check_at_least("bandwidth", self.bandwidth, 0.0, strictly=True)
        check_at_least("tflops", self.tflops, 0.0, strictly=True)
        check_at_least("tips", self.tips, 0.0, strictly=True)


@dataclass(frozen=True)
class Estimate:
    """What one rule costs."""

    name: str
    plan: Plan
    parts: list[Part]
    memory: Memory
    seconds: float

    @property
    def flops(self) -> float:
        """Operations of all parts."""
        return sum(part.flops for part in self.parts)

    @property
    def bytes(self) -> float:
        """Bytes that all parts move."""
        return sum(part.bytes for part in self.parts)

    def plain(self) -> dict[str, Any]:
        """Plain values, for a JSON document."""
        return {
            "rule": self.name,
            "layers": list(self.plan.chosen),
            "parameters_added": self.plan.belief_parameters,
            "flops": self.flops,
            "bytes": self.bytes,
            "seconds": self.seconds,
            "memory": {**asdict(self.memory), "total": self.memory.total},
            "parts": [asdict(part) for part in self.parts],
        }


def estimates(
    shape: Shape,
    work: Workload,
    *,
    layers: str = "all",
    upward: tuple[str, ...] = ("keys", "heads"),
    machine: Machine | None = None,
    kernels: bool = True,
) -> list[Estimate]:
    """What softmax, BAM and BABN cost with a model, the default first and then noise over pairs.

    Args:
        shape: The model.
        work: What is done with it.
        layers: Which layers are stochastic, as in `RuleConfig`.
        upward: The axes of the maps of noise over pairs to compare.
        machine: The machine whose time is estimated.
        kernels: Whether fused kernels are used.
    """
    machine = machine or Machine()
    chosen = chosen_layers(shape, layers)
    rules: dict[str, RuleConfig | None] = {
        "softmax": None,
        "BAM": BamConfig(),
        "BABN per key": BeliefConfig(),
    }
    for axis in upward:
        rules[f"BABN per pair, {axis}"] = BeliefConfig.pairs(upward=axis, max_length=work.length)
    found = []
    for name, rule in rules.items():
        # Softmax has nothing to train but its base, which then is not frozen.
        done = work if rule else replace(work, frozen=False)
        plan = Plan(shape, done, rule, chosen)
        listed = parts(plan)
        peaks = machine.bandwidth, machine.tflops, machine.tips
        seconds = sum(part.seconds(*peaks) for part in listed)
        found.append(Estimate(name, plan, listed, memory(plan, kernels), seconds))
    return found


def chosen_layers(shape: Shape, layers: str) -> tuple[int, ...]:
    """Numbers of the layers that a choice takes; globs see `model.layers.N.self_attn`."""
    calls = [
        Call(f"model.layers.{i}.self_attn", "", "", shape.heads, shape.head_dim, 1, 1, order=i)
        for i in range(shape.layers)
    ]
    return tuple(call.order for call in choose(calls, normalized_layers(layers))[0])


def table(found: list[Estimate]) -> list[tuple[str, ...]]:
    """A line for each rule, compared with the first."""
    return [_line(estimate, found[0].seconds) for estimate in found]


def _line(estimate: Estimate, base: float) -> tuple[str, ...]:
    return (
        estimate.name,
        _counted(estimate.plan.belief_parameters),
        _short(estimate.memory.total / GIB),
        _short(estimate.memory.pairs / GIB),
        _short(estimate.flops / 1e12),
        _short(1e3 * estimate.seconds),
        f"{estimate.seconds / base:.2f}",
    )


def _short(value: float) -> str:
    """Three digits, and no more of large numbers than they need."""
    if value == 0:
        return "0"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _counted(number: int) -> str:
    """A count in thousands, millions or billions."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return str(number)
