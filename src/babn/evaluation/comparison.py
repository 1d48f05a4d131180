"""The result of a comparison of methods: estimates, differences and their tables."""

from dataclasses import dataclass, field
from statistics import fmean, stdev

from babn.evaluation.tables import Table


@dataclass(frozen=True)
class Estimate:
    """A metric of one method over its seeds, with a confidence interval.

    Attributes:
        values: One for each seed.
        low: Lower end of the bootstrap interval of the mean over seeds.
        high: Its upper end.
    """

    values: tuple[float, ...]
    low: float
    high: float

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return fmean(self.values)

    @property
    def std(self) -> float:
        """Standard deviation over seeds; zero for one."""
        return stdev(self.values) if len(self.values) > 1 else 0.0

    def __str__(self) -> str:
        """Mean and, for several seeds, standard deviation."""
        return f"{self.mean:.3f}" + (f" ± {self.std:.3f}" if len(self.values) > 1 else "")


@dataclass(frozen=True)
class Difference:
    """A method minus the baseline, in one metric.

    Attributes:
        value: Mean difference over the seeds that both have.
        low: Lower end of its bootstrap interval.
        high: Its upper end.
        p_value: P-value of a paired t-test over seeds; NaN for fewer than two.
        more_is_better: Whether a positive difference is an improvement.
    """

    value: float
    low: float
    high: float
    p_value: float
    more_is_better: bool

    @property
    def verdict(self) -> str:
        """`better`, `worse`, or `no clear difference` if the interval holds zero."""
        if self.low <= 0 <= self.high:
            return "no clear difference"
        return "better" if (self.value > 0) == self.more_is_better else "worse"

    def __str__(self) -> str:
        """The difference, and below it its interval."""
        return f"{self.value:+.3f}\n[{self.low:+.3f}, {self.high:+.3f}]"


@dataclass(frozen=True)
class Comparison:
    """Metrics of several methods, and their differences from a baseline.

    Attributes:
        baseline: The method that the others are compared with.
        estimates: By method and metric.
        differences: By method and metric, for all but the baseline.
        directions: For each metric, whether higher is better.
        level: Coverage of all intervals, such as 0.95.
        best: For each metric, the method whose difference from every other method is clear; metrics
            without such a method are left out.
    """

    baseline: str
    estimates: dict[str, dict[str, Estimate]]
    differences: dict[str, dict[str, Difference]]
    directions: dict[str, bool]
    level: float
    best: dict[str, str] = field(default_factory=dict)

    def table(self) -> Table:
        """Every method's metrics; a method that is clearly the best of a column is marked."""
        names = list(self.directions)
        rows = [
            [method, *(str(found[name]) if name in found else "-" for name in names)]
            for method, found in self.estimates.items()
        ]
        methods = list(self.estimates)
        best = frozenset(
            (methods.index(self.best[name]), j + 1)
            for j, name in enumerate(names)
            if name in self.best
        )
        caption = (
            f"Mean and standard deviation over seeds. Bold: better than every other method, with "
            f"{self.level:.0%} bootstrap intervals of the differences that exclude 0."
        )
        return Table(["method", *names], rows, caption, best)

    def difference_table(self) -> Table:
        """Every method minus the baseline."""
        names = list(self.directions)
        rows = [
            [method, *(self._cell(found[name]) if name in found else "-" for name in names)]
            for method, found in self.differences.items()
        ]
        caption = (
            f"Difference from {self.baseline} with {self.level:.0%} bootstrap intervals, and "
            "p-values of paired t-tests over seeds."
        )
        return Table(["method", *names], rows, caption)

    def _cell(self, difference: Difference) -> str:
        seeds = difference.p_value == difference.p_value
        return f"{difference}" + (f"\np={difference.p_value:.2g}" if seeds else "")
