"""Estimates of the attention methods, and a table of them."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from babn.attention.bam import BamConfig
from babn.attention.belief import BeliefConfig
from babn.attention.method import MethodConfig, normalized_layers
from babn.conversion.calls import Call, choose
from babn.estimate.costs import Part, Plan, parts
from babn.estimate.memory import Memory, memory
from babn.estimate.sizes import Shape, Workload
from babn.validation import check_at_least

GIB = 2**30
COLUMNS = ("method", "added", "GiB", "of pairs", "TFLOP", "ms", "x softmax")
"""Added parameters, memory in total and of query-key pairs, operations, and time."""


@dataclass(frozen=True)
class Machine:
    """Peak rates of a machine; by default an NVIDIA H200 by its data sheet.

    Attributes:
        bandwidth: Memory bandwidth in TB/s.
        tflops: Matrix products in half precision in TFLOP/s.
        tips: Scalar instructions in trillions per second: multiprocessors times 128 times the clock
            rate.
    """

    bandwidth: float = 4.8
    tflops: float = 989.0
    tips: float = 29.7

    def __post_init__(self) -> None:
        """Validates the fields."""
        for name, value in asdict(self).items():
            check_at_least(name, value, 0.0, strictly=True)


@dataclass(frozen=True)
class Estimate:
    """The cost of one attention method."""

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
        """JSON values."""
        return {
            "method": self.name,
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
    """The costs of softmax, BAM, BABN with noise per key, and BABN with noise per pair.

    Args:
        shape: The model.
        work: The workload.
        layers: The converted layers, as in `MethodConfig`.
        upward: The axes of the upward maps of noise per pair to compare.
        machine: The machine.
        kernels: Whether fused kernels are used.
    """
    machine = machine or Machine()
    chosen = chosen_layers(shape, layers)
    methods: dict[str, MethodConfig | None] = {
        "softmax": None,
        "BAM": BamConfig(),
        "BABN per key": BeliefConfig(),
    }
    for axis in upward:
        methods[f"BABN per pair, {axis}"] = BeliefConfig.pairs(upward=axis, max_length=work.length)
    found = []
    for name, config in methods.items():
        # Softmax has no belief parameters, so its base is trained.
        done = work if config else replace(work, frozen=False)
        plan = Plan(shape, done, config, chosen)
        listed = parts(plan)
        seconds = sum(part.seconds(**asdict(machine)) for part in listed)
        found.append(Estimate(name, plan, listed, memory(plan, kernels), seconds))
    return found


def chosen_layers(shape: Shape, layers: str) -> tuple[int, ...]:
    """Indices of the chosen layers; globs match `model.layers.N.self_attn`."""
    calls = [
        Call(f"model.layers.{i}.self_attn", "", "", shape.heads, shape.head_dim, 1, 1, order=i)
        for i in range(shape.layers)
    ]
    return tuple(call.order for call in choose(calls, normalized_layers(layers))[0])


def table(found: list[Estimate]) -> list[tuple[str, ...]]:
    """One row for each method, with times relative to the first."""
    return [
        (
            each.name,
            _counted(each.plan.belief_parameters),
            _short(each.memory.total / GIB),
            _short(each.memory.pairs / GIB),
            _short(each.flops / 1e12),
            _short(1e3 * each.seconds),
            f"{each.seconds / found[0].seconds:.2f}",
        )
        for each in found
    ]


def _short(value: float) -> str:
    """Three significant digits, or all digits before the decimal point."""
    if value == 0:
        return "0"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _counted(number: int) -> str:
    """A count in thousands, millions or billions."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return str(number)
