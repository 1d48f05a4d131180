"""Texts of the demo: columns of the table, comparisons, examples and next steps."""

from dataclasses import dataclass

from babn.demo.examples import SAMPLES
from babn.demo.models import Source
from babn.demo.outcome import Example, Outcome, Row
from babn.evaluation.comparison import Difference
from babn.training.fine_tuning import Recipe


@dataclass(frozen=True)
class Column:
    """One column of numbers.

    Attributes:
        name: Its heading.
        field: The key of `Scores`, or `"level"` of the row.
        goal: Which way is better, if there is one.
        meaning: Its meaning, for someone new to it.
    """

    name: str
    field: str
    goal: str
    meaning: str

    @property
    def legend(self) -> str:
        """Meaning and goal."""
        return f"{self.meaning}; {self.goal}" if self.goal else self.meaning

    def show(self, row: Row) -> str:
        """A row's number as text."""
        value = row.level if self.field == "level" else row.scores[self.field]
        if value is None:
            return "-"
        decimals = {"level": 2, "nll": 3}
        return f"{value:.{decimals[self.field]}f}" if self.field in decimals else percent(value)


def percent(value: float) -> str:
    """A share in per cent."""
    return f"{100 * value:.1f}"


HIGHER, LOWER = "higher is better", "lower is better"
ENTROPY = "how well the entropy H detects out-of-scope texts (AUROC, in %; 50 is chance)"
INFORMATION = "the same by mutual information: the part of H on which the samples disagree"
AMBIGUOUS = "how well the entropy detects ambiguous texts, which two intents fit (AUROC, in %)"
ERROR = "gap between confidence and accuracy (expected calibration error), in %"
SURPRISE = "surprise at the right intent (negative log likelihood, in nats)"
LEVEL = "factor of the attention noise that babn.tune_noise found on development texts"

COLUMNS = (
    Column("accuracy", "accuracy", HIGHER, "clear texts whose intent is found, in %"),
    Column("NLL", "nll", LOWER, SURPRISE),
    Column("ECE", "ece", LOWER, ERROR),
    Column("OOS by H", "outside_entropy", HIGHER, ENTROPY),
    Column("OOS by MI", "outside_information", HIGHER, INFORMATION),
    Column("amb. by H", "ambiguous_entropy", HIGHER, AMBIGUOUS),
    Column("amb. by MI", "ambiguous_information", HIGHER, "the same by mutual information"),
    Column("noise level", "level", "", LEVEL),
)


SHORTEST = (
    "babn.convert(model)                  # a fine-tuned classifier, in place",
    "babn.tune_noise(model, dev_batches)  # noise and temperature, no training",
    "babn.predict(model, batch)           # .probs, .interval(), .disagreement",
)
"""The shortest way from a classifier to uncertainty."""


def announcement(source: Source, recipe: Recipe) -> list[str]:
    """Lines that announce the model and the comparison."""
    return [
        f"Model: {source.name}",
        f"Fine-tuned for {recipe.epochs} epochs to sort short requests by intent. From there on:",
        "",
        *(f"  {line}" for line in SHORTEST),
        "",
        "Beside it: softmax, a temperature, dropout, and a copy trained as BABN.",
    ]


def heading(outcome: Outcome) -> str:
    """Heading of the verdicts."""
    return f"Against {outcome.rows[0].name}, by 95 % intervals from resampling the test texts"


def verdicts(outcome: Outcome) -> list[str]:
    """One line for each row after softmax, and two about out-of-scope texts."""
    lines = [f"{name}: {_verdict(found)}" for name, found in outcome.differences.items()]
    return [*lines, detection(outcome), novelty(outcome)]


def _verdict(found: dict[str, Difference]) -> str:
    parts = []
    for verdict in ("better", "worse", "no clear difference"):
        named = [
            name if verdict.startswith("no") else f"{name} ({_change(name, each)})"
            for name, each in found.items()
            if each.verdict == verdict
        ]
        parts += [f"{verdict} in {', '.join(named)}"] if named else []
    return "; ".join(parts)


def _change(name: str, difference: Difference) -> str:
    return f"{difference.value:+.3f}" if name == "NLL" else f"{100 * difference.value:+.1f} points"


def detection(outcome: Outcome) -> str:
    """How well BABN detects out-of-scope texts, beside softmax."""
    ours = [row for row in outcome.rows if row.level is not None]
    found = {row.name: row.scores["outside_entropy"] or 0.0 for row in (outcome.rows[0], *ours)}
    shown = (f"{name} {percent(each)}" for name, each in found.items())
    softmax, *others = found.values()
    verdict = "at least as well as" if max(others) >= softmax else "less well than"
    return (
        f"BABN detects out-of-scope texts {verdict} softmax (AUROC by entropy: {'; '.join(shown)})"
    )


def novelty(outcome: Outcome) -> str:
    """How well the distance from the training texts detects out-of-scope texts."""
    found = outcome.novelty
    return (
        f"babn.fit_novelty detects them by their distance from the training texts (AUROC "
        f"{percent(found.auroc)}): with p-values up to 5 % it flags {percent(found.outside)} % of "
        f"them and {percent(found.clear)} % of the clear texts"
    )


def tested_on(outcome: Outcome) -> str:
    """The texts that the numbers come from."""
    texts, samples = outcome.texts, len(outcome.rows[-1].predictions.clear.sample_logits)
    return (
        f"Measured on {len(texts.clear)} clear, {len(texts.outside)} out-of-scope and "
        f"{len(texts.ambiguous)} ambiguous texts that neither training nor tuning saw, by "
        f"{samples} samples; softmax has one prediction."
    )


def caveat(outcome: Outcome) -> str:
    """Reminder that the numbers come from one run and few texts."""
    return (
        f"One training run (seed {outcome.settings.seed}) and {len(outcome.texts.clear)} clear "
        "texts: another seed moves these numbers by a few points."
    )


def certainty(example: Example) -> str:
    """The prediction for a sentence, and its uncertainty."""
    found = example.numbers()
    return (
        f"{example.intent.replace('_', ' ')}, {100 * found['probability']:.0f} % (90 % of samples "
        f"between {100 * found['low']:.0f} and {100 * found['high']:.0f} %); another intent in "
        f"{100 * found['disagreement']:.0f} % of {SAMPLES} samples; mutual information "
        f"{found['mutual_information']:.3f} nats"
    )


NEXT = (
    ("babn.convert(model)", "your own fine-tuned classifier, in place"),
    ("babn.tune_noise(model, dev_batches)", "noise level and temperature, without training"),
    ("babn.predict(model, batch)", "probabilities, .interval(), .disagreement, ..."),
    ("babn view MODEL --text ...", "a page: where attention is unsure"),
    ("babn inspect MODEL", "what babn would do to your own model"),
)
"""What to do next, in Python and on the command line."""
