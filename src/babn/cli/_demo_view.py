"""Output of the demo in the terminal."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from babn.cli._terminal import Bars, plain_table
from babn.demo.demo_run import EXAMPLE_SAMPLES, find_source, pick_recipe
from babn.demo.outcome import VIEW, Example, Outcome, Row, Settings
from babn.evaluation.comparison import Difference
from babn.evaluation.html_report import PAGE


@dataclass(frozen=True)
class Column:
    """One column of numbers.

    Attributes:
        name: Its heading.
        field: The key of `Scores`, or `"level"` of the row.
        meaning: An explanation for newcomers, and which direction is better.
    """

    name: str
    field: str
    meaning: str

    def show(self, row: Row) -> str:
        """Formats the value of a row."""
        value = row.level if self.field == "level" else row.scores[self.field]
        if value is None:
            return "-"
        decimals = {"level": 2, "nll": 3}
        return f"{value:.{decimals[self.field]}f}" if self.field in decimals else percent(value)


def percent(value: float) -> str:
    """A share in per cent."""
    return f"{100 * value:.1f}"


HIGHER, LOWER = "higher is better", "lower is better"
SURPRISE = "surprise at the right intent (negative log likelihood, in nats)"
ERROR = "gap between confidence and accuracy (expected calibration error), in %"
ENTROPY = "how well the entropy H detects out-of-scope texts (AUROC, in %; 50 is chance)"
INFORMATION = "the same by mutual information: the part of H on which the samples disagree"
AMBIGUOUS = "how well the entropy detects ambiguous texts, which two intents fit (AUROC, in %)"
LEVEL = "factor of the attention noise that babn.tune_noise found on development texts"

COLUMNS = (
    Column("accuracy", "accuracy", f"clear texts whose intent is found, in %; {HIGHER}"),
    Column("NLL", "nll", f"{SURPRISE}; {LOWER}"),
    Column("ECE", "ece", f"{ERROR}; {LOWER}"),
    Column("OOS by H", "outside_entropy", f"{ENTROPY}; {HIGHER}"),
    Column("OOS by MI", "outside_information", f"{INFORMATION}; {HIGHER}"),
    Column("amb. by H", "ambiguous_entropy", f"{AMBIGUOUS}; {HIGHER}"),
    Column("amb. by MI", "ambiguous_information", f"the same by mutual information; {HIGHER}"),
    Column("noise level", "level", LEVEL),
)

NEXT = (
    ("babn.convert(model)", "your own fine-tuned classifier, in place"),
    ("babn.tune_noise(model, dev_batches)", "noise and temperature, no training"),
    ("babn.predict(model, batch)", ".probs, .interval(), .disagreement"),
    ("babn view MODEL --text ...", "a page: where attention is unsure"),
    ("babn inspect MODEL", "what babn converts in your own model"),
)
"""Next steps in Python and on the command line."""


class Terminal(Bars):
    """Shows progress bars while the demo runs, and its results at the end."""

    def __init__(self) -> None:
        super().__init__(Console(highlight=False))

    def announce(self, settings: Settings) -> None:
        """Prints the model and the comparison."""
        source = find_source(settings)
        if source.remark:
            self._say(source.remark, style="yellow")
        self._say(
            f"Model: {source.name}",
            f"Fine-tuned for {pick_recipe(settings, source).epochs} epochs to sort short requests "
            "by intent, and converted.",
            "Beside it: softmax, a temperature, dropout, and a copy trained as BABN.",
            "",
        )

    def show(self, outcome: Outcome, folder: Path) -> None:
        """Prints the table, its legend, two examples, and the next steps."""
        texts, samples = outcome.texts, len(outcome.rows[-1].predictions.clear.sample_logits)
        rows = [[row.name, *(column.show(row) for column in COLUMNS)] for row in outcome.rows]
        headings = ["attention", *(column.name for column in COLUMNS)]
        self.console.print(plain_table(headings, rows, tight=True))
        self._say(
            f"Measured on {len(texts.clear)} clear, {len(texts.outside)} out-of-scope and "
            f"{len(texts.ambiguous)} ambiguous texts that neither training nor tuning saw, by "
            f"{samples} samples; softmax has one prediction.",
            "",
            style="dim",
        )
        self._grid(((column.name, column.meaning) for column in COLUMNS), style="dim")
        self._say(
            "",
            f"Against {outcome.rows[0].name}, by 95 % intervals from resampling the test texts:",
            *(f"  {verdict}" for verdict in verdicts(outcome)),
        )
        self._say(
            f"One training run (seed {outcome.settings.seed}) and {len(texts.clear)} clear texts: "
            "another seed moves these numbers by a few points.",
            "",
            style="dim",
        )
        self._say(*(f'"{each.text}": {certainty(each)}' for each in outcome.examples), "")
        for title, name in (("Charts", PAGE), ("Attention", VIEW)):
            self.say(f"{title}: {folder / name}")
        self._grid(("" if i else "Next:", *step) for i, step in enumerate(NEXT))

    def _say(self, *lines: str, style: str | None = None) -> None:
        for line in lines:
            self.console.print(line, style=style, markup=False)

    def _grid(self, rows: Iterable[tuple[str, ...]], style: str | None = None) -> None:
        """Prints aligned columns."""
        made = Table.grid(padding=(0, 2))
        made.add_column(no_wrap=True)
        for row in rows:
            made.add_row(*row, style=style)
        self.console.print(made)


def verdicts(outcome: Outcome) -> list[str]:
    """One line for each row after softmax, and two about out-of-scope texts."""
    lines = [f"{name}: {_verdict(found)}" for name, found in outcome.differences.items()]
    ours = [row for row in outcome.rows if row.level is not None]
    found = {row.name: row.scores["outside_entropy"] or 0.0 for row in (outcome.rows[0], *ours)}
    shown = "; ".join(f"{name} {percent(each)}" for name, each in found.items())
    novelty = outcome.novelty
    return [
        *lines,
        f"Out-of-scope texts are detected by entropy with these AUROCs: {shown}",
        f"babn.fit_novelty detects them by their distance from the training texts (AUROC "
        f"{percent(novelty.auroc)}): with p-values up to 5 % it flags {percent(novelty.outside)} % "
        f"of them and {percent(novelty.clear)} % of the clear texts",
    ]


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


def certainty(example: Example) -> str:
    """The prediction for a sentence, and its uncertainty."""
    found = example.numbers()
    return (
        f"{example.intent.replace('_', ' ')}, {100 * found['probability']:.0f} % (90 % of samples "
        f"between {100 * found['low']:.0f} and {100 * found['high']:.0f} %); another intent in "
        f"{100 * found['disagreement']:.0f} % of {EXAMPLE_SAMPLES} samples; mutual information "
        f"{found['mutual_information']:.3f} nats"
    )
