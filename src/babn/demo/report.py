"""What the table's columns are called, how their numbers are written, and what they mean."""

from collections.abc import Callable
from dataclasses import dataclass

from babn.demo.outcome import Outcome, Row
from babn.evaluation.comparison import Difference

MISSING = "-"


@dataclass(frozen=True)
class Column:
    """One column of numbers.

    Attributes:
        name: Its heading.
        meaning: What it says, for someone who never heard of it.
        goal: Which way is better, if there is one.
        show: A row's number as text.
    """

    name: str
    meaning: str
    goal: str
    show: Callable[[Row], str]


def percent(value: float | None) -> str:
    """A share in per cent."""
    return MISSING if value is None else f"{100 * value:.1f}"


COLUMNS = (
    Column(
        "accuracy",
        "clear texts whose intent is found, in %",
        "higher is better",
        lambda row: percent(row.scores.accuracy),
    ),
    Column(
        "NLL",
        "surprise at the right intent (negative log likelihood, in nats)",
        "lower is better",
        lambda row: f"{row.scores.nll:.3f}",
    ),
    Column(
        "ECE",
        "gap between stated confidence and accuracy (expected calibration error), in %",
        "lower is better",
        lambda row: percent(row.scores.ece),
    ),
    Column(
        "OOS by H",
        "how well the entropy H tells out-of-scope texts from clear ones (AUROC, in %; 50 is a "
        "coin toss)",
        "higher is better",
        lambda row: percent(row.scores.auroc_entropy),
    ),
    Column(
        "OOS by MI",
        "the same by mutual information: the part of the entropy on which the samples disagree",
        "higher is better",
        lambda row: percent(row.scores.auroc_mutual_information),
    ),
    Column(
        "H clear",
        "mean entropy of clear texts, in nats (2.77 is knowing nothing)",
        "",
        lambda row: f"{row.scores.entropy_clear:.2f}",
    ),
    Column(
        "H ambig.",
        "mean entropy of ambiguous texts",
        "should exceed H clear",
        lambda row: f"{row.scores.entropy_ambiguous:.2f}",
    ),
    Column(
        "both on top",
        "ambiguous texts whose two intents are the two most probable, in %",
        "higher is better",
        lambda row: percent(row.scores.both_on_top),
    ),
    Column(
        "s/step",
        "seconds of a training step (median)",
        "lower is better",
        lambda row: f"{row.seconds_per_step:.2f}",
    ),
)


def verdicts(outcome: Outcome) -> list[str]:
    """One line for each measure: how the last rule compares with the first."""
    return [_verdict(name, difference) for name, difference in outcome.differences.items()]


def _verdict(name: str, difference: Difference) -> str:
    scale, digits, unit = (1, 3, "") if name == "NLL" else (100, 1, " points")
    value, low, high = (
        f"{scale * x:+.{digits}f}" for x in (difference.value, difference.low, difference.high)
    )
    return f"{name} {value}{unit} (from {low} to {high}): {difference.verdict}"


def heading(outcome: Outcome) -> str:
    """What the verdicts compare."""
    last, first = outcome.rows[-1].name, outcome.rows[0].name
    return f"{last} against {first}, with 95 % intervals from resampling the test texts"


def tested_on(outcome: Outcome) -> str:
    """Which texts the numbers come from, and how the models were asked about them."""
    texts, samples = outcome.texts, outcome.attempts[-1].fullest.samples
    return (
        f"Measured on {len(texts.clear)} clear, {len(texts.outside)} out-of-scope and "
        f"{len(texts.ambiguous)} ambiguous texts that training never saw. “mean” asks once, with "
        f"the average attention; “sampled” averages the answers of {samples} samples."
    )


def caveat(outcome: Outcome) -> str:
    """How far the numbers can be trusted."""
    return (
        f"One training run (seed {outcome.settings.seed}) and {len(outcome.texts.clear)} clear "
        "texts: another seed moves these numbers by a few points."
    )
