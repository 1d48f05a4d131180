"""The result of a comparison of methods: estimates, differences and their tables."""

import math
from collections.abc import Mapping
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
        """The difference, and below it its interval and, for several seeds, the p-value."""
        found = f"{self.value:+.3f}\n[{self.low:+.3f}, {self.high:+.3f}]"
        return found if math.isnan(self.p_value) else f"{found}\np={self.p_value:.2g}"


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
        methods, names = list(self.estimates), list(self.directions)
        best = {(methods.index(self.best[n]), 1 + names.index(n)) for n in names if n in self.best}
        caption = (
            f"Mean and standard deviation over seeds. Bold: better than every other method, with "
            f"{self.level:.0%} bootstrap intervals of the differences that exclude 0."
        )
        return Table(["method", *names], self._rows(self.estimates), caption, frozenset(best))

    def difference_table(self) -> Table:
        """Every method minus the baseline."""
        caption = (
            f"Difference from {self.baseline} with {self.level:.0%} bootstrap intervals, and "
            "p-values of paired t-tests over seeds."
        )
        return Table(["method", *self.directions], self._rows(self.differences), caption)

    def _rows(self, found: Mapping[str, Mapping[str, object]]) -> list[list[str]]:
        return [
            [method, *(str(values.get(name, "-")) for name in self.directions)]
            for method, values in found.items()
        ]
