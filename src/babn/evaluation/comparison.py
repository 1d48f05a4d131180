"""Compares methods on the same test set: bootstrap intervals, and paired tests over seeds."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import torch
from jaxtyping import Float, Int
from torch import Tensor

from babn.errors import ConfigError
from babn.evaluation.predictions import Evaluation
from babn.evaluation.tables import Table
from babn.metrics.accuracy_nll_brier import correctness, negative_log_probs, squared_errors
from babn.metrics.calibration_error import binned_sums, mean_gap
from babn.metrics.checks import examples, sampled_examples
from babn.metrics.pavpu_counts import accurate_and_certain
from babn.metrics.ranking import aurc, auroc
from babn.prediction.regression import cross_fitted_nll, mixture_nll
from babn.prediction.t_tests import paired_p_value
from babn.validation import check_count, check_share

NO_DIFFERENCE = "no clear difference"

ALPHA = 0.05
"""Significance level of PAvPU."""

PAVPU = f"PAvPU (p<{ALPHA:g})"

OUTSIDE = "outside AUROC"
"""AUROC of out-of-distribution detection by entropy."""

MORE_IS_BETTER = ("accuracy", PAVPU, OUTSIDE)

PER_EXAMPLE = {"accuracy": correctness, "NLL": negative_log_probs, "Brier": squared_errors}
"""Metrics that are means over examples."""

Groups = dict[str, dict[int, Evaluation]]
"""Evaluations by method and seed."""

Draws = Int[Tensor, "draw example"]
"""Indices of examples: all in order in the first row, and one row for each resample."""

BySeed = dict[int, Float[Tensor, "draw"]]
"""The values of a metric for all draws, by seed."""


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
        return mean_and_std(self.values)


def mean_and_std(values: Sequence[float]) -> str:
    """The mean and, for several values, the standard deviation."""
    return f"{fmean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")


@dataclass(frozen=True)
class Difference:
    """A method minus the baseline, in one metric.

    Attributes:
        value: Mean difference over the seeds that the two share.
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
            return NO_DIFFERENCE
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
        differences: By method and metric, for all methods but the baseline.
        directions: For each metric, whether higher is better.
        level: Coverage of all intervals, such as 0.95.
        best: The method that is clearly better than every other one, by metric; metrics without
            such a method are left out.
    """

    baseline: str
    estimates: dict[str, dict[str, Estimate]]
    differences: dict[str, dict[str, Difference]]
    directions: dict[str, bool]
    level: float
    best: dict[str, str]

    def table(self) -> Table:
        """The metrics of every method; the best of a column is marked if significant."""
        methods, names = list(self.estimates), list(self.directions)
        best = {(methods.index(self.best[n]), 1 + names.index(n)) for n in names if n in self.best}
        several = any(len(x.values) > 1 for each in self.estimates.values() for x in each.values())
        values = "Mean and standard deviation over seeds. " if several else ""
        caption = (
            f"{values}Bold: better than every other method, with {self.level:.0%} bootstrap "
            "intervals of the differences that exclude 0."
        )
        return Table(["method", *names], _rows(self.estimates, names), caption, frozenset(best))

    def difference_table(self) -> Table:
        """The difference of every method from the baseline, for metrics that both have."""
        found = self.differences
        names = [name for name in self.directions if any(name in each for each in found.values())]
        tested = any(not math.isnan(x.p_value) for each in found.values() for x in each.values())
        caption = (
            f"Difference from {self.baseline} with {self.level:.0%} bootstrap intervals"
            f"{', and p-values of paired t-tests over seeds' if tested else ''}."
        )
        return Table(["method", *names], _rows(found, names), caption)

    def verdict(self, method: str) -> str:
        """The metrics in which a method is better or worse than the baseline, in words."""
        found, parts = self.differences[method], []
        for verdict in ("better", "worse", NO_DIFFERENCE):
            names = [name for name, each in found.items() if each.verdict == verdict]
            parts += [f"{verdict} in {', '.join(names)}"] if names else []
        return "; ".join(parts)


def _rows(found: Mapping[str, Mapping[str, object]], names: Sequence[str]) -> list[list[str]]:
    return [
        [method, *(str(values.get(name, "-")) for name in names)]
        for method, values in found.items()
    ]


def compare(
    evaluations: Sequence[Evaluation],
    baseline: str | None = None,
    *,
    bins: int = 10,
    resamples: int = 500,
    level: float = 0.95,
    seed: int = 0,
) -> Comparison:
    """Compares methods that were evaluated on the same examples.

    Intervals come from a bootstrap over examples that is the same for all methods, p-values from
    paired t-tests over the seeds that two methods share.

    Args:
        evaluations: One for each method and seed.
        baseline: The method that the others are compared with; by default the first.
        bins: Bins of the calibration error.
        resamples: Number of bootstrap resamples.
        level: Coverage of the intervals.
        seed: Seed of the bootstrap.
    """
    check_share("level", level)
    check_count("resamples", resamples)
    groups = grouped(evaluations, baseline)
    baseline = baseline or next(iter(groups))
    draws = draw(len(evaluations[0].labels), resamples, seed)
    drawn = {method: _measured(group, draws, bins, seed) for method, group in groups.items()}
    names = list(dict.fromkeys(name for by_name in drawn.values() for name in by_name))

    def difference(method: str, other: str, name: str) -> Difference:
        found = _differences(drawn[method][name], drawn[other][name])
        interval, p_value = _interval(found, level), float(paired_p_value(found[:, 0]))
        return Difference(found[:, 0].mean().item(), *interval, p_value, name in MORE_IS_BETTER)

    def is_best(method: str, name: str) -> bool:
        """Whether a method is clearly better than every other one that has the metric."""
        others = [other for other in drawn if other != method and name in drawn[other]]
        return bool(others) and all(
            difference(method, other, name).verdict == "better" for other in others
        )

    return Comparison(
        baseline,
        {
            method: {name: _estimate(values, level) for name, values in by_name.items()}
            for method, by_name in drawn.items()
        },
        {
            method: {n: difference(method, baseline, n) for n in by_name if n in drawn[baseline]}
            for method, by_name in drawn.items()
            if method != baseline
        },
        {name: name in MORE_IS_BETTER for name in names},
        level,
        {n: method for method in drawn for n in drawn[method] if is_best(method, n)},
    )


def grouped(evaluations: Sequence[Evaluation], baseline: str | None = None) -> Groups:
    """Groups evaluations by method and seed, and checks that they share their examples."""
    if not evaluations:
        raise ConfigError("evaluations=[] is invalid. Give at least one.")
    groups: Groups = {}
    for each in evaluations:
        if each.seed in groups.setdefault(each.method, {}):
            raise ConfigError(
                f"evaluations hold {each.method!r} with seed {each.seed} twice. Leave one out, or "
                "give them different methods or seeds."
            )
        if not torch.equal(each.labels, evaluations[0].labels):
            raise ConfigError(
                f"labels of {each.method!r} (seed {each.seed}) differ from those of "
                f"{evaluations[0].method!r}. Compare predictions for the same examples."
            )
        groups[each.method][each.seed] = each
    if baseline is not None and baseline not in groups:
        raise ConfigError(f"baseline={baseline!r} is not among {sorted(groups)}. Name one of them.")
    return groups


def draw(size: int, resamples: int, seed: int) -> Draws:
    """Indices of examples: in order in the first row, drawn with replacement in the others."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(size, (resamples, size), generator=generator)
    return torch.cat([torch.arange(size)[None], drawn])


def _measured(
    group: dict[int, Evaluation], draws: Draws, bins: int, seed: int
) -> dict[str, BySeed]:
    """The values of a method by name, for the metrics that all of its seeds have."""
    found = {own: _values(each, draws, bins, seed) for own, each in group.items()}
    first, *others = found.values()
    names = [name for name in first if all(name in each for each in others)]
    return {name: {own: each[name] for own, each in found.items()} for name in names}


def _values(
    evaluation: Evaluation, draws: Draws, bins: int, seed: int
) -> dict[str, Float[Tensor, "draw"]]:
    """Each metric of an evaluation for all draws."""
    prediction, outside = evaluation.prediction, evaluation.outside
    if prediction.activation == "identity":
        return _of_numbers(evaluation, draws)
    p, y = (x.cpu() for x in examples(prediction, evaluation.labels))
    each = {name: function(p, y) for name, function in PER_EXAMPLE.items()}
    if len(prediction.sample_logits) > 1:
        sampled = sampled_examples(prediction, evaluation.labels)
        accurate, certain = accurate_and_certain(*sampled, ALPHA)
        each[PAVPU] = (accurate == certain).cpu().double()
    found = {name: values[draws].mean(1) for name, values in each.items()}
    confidence, correct = p.amax(-1), correctness(p, y)
    found[f"ECE-{bins}"] = _doubles(
        mean_gap(binned_sums(confidence[rows], correct[rows], bins)).item() for rows in draws
    )
    found["AURC"] = _doubles(aurc(confidence[rows], correct[rows] > 0) for rows in draws)
    if outside is not None:
        low, high = prediction.entropy, outside.entropy
        others = draw(len(high), len(draws) - 1, seed + 1)
        pairs = zip(draws, others, strict=True)
        found[OUTSIDE] = _doubles(auroc(low[rows], high[other]) for rows, other in pairs)
    return found


def _of_numbers(evaluation: Evaluation, draws: Draws) -> dict[str, Float[Tensor, "draw"]]:
    """The metrics of a regression.

    The NLL uses the residual of the prediction. If it is 0, a residual is fitted to the other half
    of the examples.
    """
    values = evaluation.prediction.sample_logits.squeeze(-1).cpu().double()
    labels = evaluation.labels.cpu().double()
    errors = (values.mean(0) - labels).abs()
    residual = evaluation.prediction.residual
    fitted = mixture_nll(values, labels, residual) if residual else cross_fitted_nll(values, labels)
    return {
        "RMSE": errors.square()[draws].mean(1).sqrt(),
        "MAE": errors[draws].mean(1),
        "NLL": fitted[draws].mean(1),
    }


def _doubles(values: Iterable[float]) -> Float[Tensor, "value"]:
    return torch.tensor(list(values), dtype=torch.float64)


def _differences(ours: BySeed, theirs: BySeed) -> Float[Tensor, "shared draw"]:
    """Differences for each seed that the methods share, or of their means if they share none."""
    shared = [seed for seed in ours if seed in theirs]
    if not shared:
        first, second = (torch.stack([*each.values()]) for each in (ours, theirs))
        return first.mean(0, keepdim=True) - second.mean(0, keepdim=True)
    return torch.stack([ours[seed] - theirs[seed] for seed in shared])


def _estimate(values: BySeed, level: float) -> Estimate:
    drawn = torch.stack([*values.values()])
    return Estimate(tuple(drawn[:, 0].tolist()), *_interval(drawn, level))


def _interval(drawn: Float[Tensor, "seed draw"], level: float) -> tuple[float, float]:
    """The bootstrap interval of the mean over seeds."""
    tail = (1 - level) / 2
    low, high = drawn[:, 1:].mean(0).quantile(drawn.new_tensor([tail, 1 - tail])).tolist()
    return low, high
