"""Compares methods on the same test set: bootstrap intervals, and paired tests over seeds."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from babn import metrics
from babn.errors import ConfigError
from babn.evaluation.comparison import Comparison, Difference, Estimate
from babn.evaluation.predictions import Evaluation
from babn.metrics.inputs import examples, sampled_examples
from babn.metrics.pavpu_counts import accurate_and_certain
from babn.metrics.scores import correctness, negative_log_probs, squared_errors
from babn.prediction.regression import cross_fitted_nll, mixture_nll
from babn.prediction.result import Prediction
from babn.prediction.t_tests import paired_p_value
from babn.validation import check_count, check_share

ALPHA = 0.05
"""Significance level of PAvPU."""

OUTSIDE = "outside AUROC"
"""AUROC of out-of-distribution detection by entropy."""

PER_EXAMPLE = {"accuracy": correctness, "NLL": negative_log_probs, "Brier": squared_errors}
"""Metrics that are means over examples."""

Groups = dict[str, dict[int, Evaluation]]
"""Evaluations by method and seed."""

Draws = Int[Tensor, "draw example"]
"""Indices of examples, one row for each resample."""


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
    tail = (1 - level) / 2

    def difference(method: str, other: str, name: str) -> Difference:
        seeds = list(groups[method]), list(groups[other])
        pairs = _paired(drawn[method][name], drawn[other][name], *seeds)
        interval = _interval(pairs[:, 1:].mean(0), tail)
        p_value = float(paired_p_value(pairs[:, 0]))
        return Difference(pairs[:, 0].mean().item(), *interval, p_value, _more_is_better(name))

    def clear_best(name: str) -> str | None:
        """The method whose difference from every other one is clear."""
        known = [method for method in drawn if name in drawn[method]]
        for method in known if len(known) > 1 else ():
            others = (difference(method, other, name) for other in known if other != method)
            if all(each.verdict == "better" for each in others):
                return method
        return None

    names = list(dict.fromkeys(name for by_name in drawn.values() for name in by_name))
    best = {name: clear_best(name) for name in names}
    return Comparison(
        baseline,
        {
            method: {name: _estimate(values, tail) for name, values in by_name.items()}
            for method, by_name in drawn.items()
        },
        {
            method: {n: difference(method, baseline, n) for n in by_name if n in drawn[baseline]}
            for method, by_name in drawn.items()
            if method != baseline
        },
        {name: _more_is_better(name) for name in names},
        level,
        {name: method for name, method in best.items() if method is not None},
    )


def grouped(evaluations: Sequence[Evaluation], baseline: str | None = None) -> Groups:
    """Groups evaluations by method and seed, and checks that they share their examples."""
    if not evaluations:
        raise ConfigError("evaluations=[] is not possible. Give at least one.")
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
    """Indices of examples: each once in the first row, drawn with replacement in the others."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(size, (resamples, size), generator=generator)
    return torch.cat([torch.arange(size)[None], drawn])


def _more_is_better(name: str) -> bool:
    return name.startswith(("accuracy", "PAvPU")) or name == OUTSIDE


def _measured(
    group: dict[int, Evaluation], draws: Draws, bins: int, seed: int
) -> dict[str, Float[Tensor, "seed draw"]]:
    """The values of a method, for the metrics that all of its seeds have."""
    by_seed = [_values(each, draws, bins, seed) for each in group.values()]
    names = [name for name in by_seed[0] if all(name in each for each in by_seed)]
    return {name: torch.stack([each[name] for each in by_seed]) for name in names}


def _values(
    evaluation: Evaluation, draws: Draws, bins: int, seed: int
) -> dict[str, Float[Tensor, "draw"]]:
    """Each metric of an evaluation for all draws."""
    prediction = evaluation.prediction
    if prediction.activation == "identity":
        return _of_numbers(evaluation, draws)
    p, y = (x.cpu() for x in examples(prediction, evaluation.labels))
    each = {name: function(p, y) for name, function in PER_EXAMPLE.items()}
    if len(prediction.sample_logits) > 1:
        sampled = sampled_examples(prediction, evaluation.labels)
        accurate, certain = accurate_and_certain(*sampled, ALPHA)
        each[f"PAvPU (p<{ALPHA:g})"] = (accurate == certain).cpu().double()
    found = {name: values[draws].mean(1) for name, values in each.items()}
    known = metrics.metrics_for(bins, ALPHA)
    for name in (f"ECE-{bins}", "AURC"):
        values = [float(known[name].function(p[rows], y[rows])) for rows in draws]
        found[name] = torch.tensor(values, dtype=torch.float64)
    if evaluation.outside is not None:
        found[OUTSIDE] = _outside(prediction, evaluation.outside, draws, seed)
    return found


def _of_numbers(evaluation: Evaluation, draws: Draws) -> dict[str, Float[Tensor, "draw"]]:
    """The metrics of a regression.

    The NLL uses the residual of the prediction; without one it is fitted to the other half of the
    examples.
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


def _outside(
    inside: Prediction, outside: Prediction, draws: Draws, seed: int
) -> Float[Tensor, "draw"]:
    low, high = inside.entropy, outside.entropy
    pairs = zip(draws, draw(len(high), len(draws) - 1, seed + 1), strict=True)
    drawn = [metrics.auroc(low[a], high[b]) for a, b in pairs]
    return torch.tensor(drawn, dtype=torch.float64)


def _paired(
    ours: Float[Tensor, "seed draw"],
    theirs: Float[Tensor, "other draw"],
    own: list[int],
    other: list[int],
) -> Float[Tensor, "shared draw"]:
    """Differences for each seed that both have, or of the means if they share none."""
    shared = [seed for seed in own if seed in other]
    if not shared:
        return ours.mean(0, keepdim=True) - theirs.mean(0, keepdim=True)
    return ours[[own.index(s) for s in shared]] - theirs[[other.index(s) for s in shared]]


def _estimate(drawn: Float[Tensor, "seed draw"], tail: float) -> Estimate:
    return Estimate(tuple(drawn[:, 0].tolist()), *_interval(drawn[:, 1:].mean(0), tail))


def _interval(drawn: Float[Tensor, "draw"], tail: float) -> tuple[float, float]:
    low, high = drawn.quantile(drawn.new_tensor([tail, 1 - tail])).tolist()
    return low, high
