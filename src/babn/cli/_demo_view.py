"""Output of the demo in the terminal."""

from pathlib import Path

from rich.console import Console

from babn.cli._terminal import plain_table
from babn.demo.demo_run import EXAMPLE_SAMPLES, find_source, pick_recipe
from babn.demo.outcome import VIEW, Example, Outcome, Row, Settings
from babn.evaluation.comparison import Difference
from babn.evaluation.html_report import PAGE

COLUMNS = {
    "accuracy": ("accuracy", "clear texts whose intent is found, in %"),
    "NLL": ("nll", "negative log likelihood of the right intent, in nats"),
    "ECE": ("ece", "gap between confidence and accuracy, in %"),
    "OOS by H": ("outside_entropy", "AUROC of detecting out-of-scope texts by entropy, in %"),
    "OOS by MI": ("outside_information", "the same by mutual information"),
    "amb. by H": ("ambiguous_entropy", "AUROC of detecting ambiguous texts by entropy, in %"),
    "amb. by MI": ("ambiguous_information", "the same by mutual information"),
    "noise level": ("level", "factor of the noise, found on development texts"),
}
"""Heading of each column, with the key of `Scores` and an explanation."""

NEXT = """\
Next: babn.convert(model)                   your fine-tuned model, in place
      babn.tune_noise(model, dev_batches)   noise and temperature, no training
      babn.predict(model, batch)            .probs, .interval(), .disagreement"""
"""Next steps in Python."""


def announce(console: Console, settings: Settings) -> None:
    """Prints the model and the comparison."""
    source = find_source(settings)
    if source.remark:
        console.print(source.remark, style="yellow", markup=False)
    console.print(
        f"Model: {source.name}\n"
        f"Fine-tuned for {pick_recipe(settings, source).epochs} epochs to sort short requests by "
        "intent, and converted.\n"
        "Beside it: softmax, a temperature, dropout, and a copy trained as BABN.\n"
    )


def show(console: Console, outcome: Outcome, folder: Path) -> None:
    """Prints the table, its legend, two examples, and the next steps."""
    texts, samples = outcome.texts, len(outcome.rows[-1].predictions.clear.sample_logits)
    rows = [[row.name, *(cell(row, name) for name in COLUMNS)] for row in outcome.rows]
    console.print(plain_table(["attention", *COLUMNS], rows, tight=True))
    legend = (f"{name:<12}{meaning}" for name, (_, meaning) in COLUMNS.items())
    lines = [
        f"Measured on {len(texts.clear)} clear, {len(texts.outside)} out-of-scope and "
        f"{len(texts.ambiguous)} ambiguous texts that neither training nor tuning saw, by "
        f"{samples} samples; softmax has one prediction. One training run (seed "
        f"{outcome.settings.seed}): another seed moves these numbers by a few points.\n",
        *legend,
        f"\nAgainst {outcome.rows[0].name}, by 95 % intervals from resampling the test texts:",
        *(f"  {verdict}" for verdict in verdicts(outcome)),
        "",
        *(f'"{each.text}": {certainty(each)}' for each in outcome.examples),
    ]
    console.print("\n".join(lines), markup=False)
    pages = f"\nCharts: {folder / PAGE}\nAttention: {folder / VIEW}"
    console.print(pages, markup=False, soft_wrap=True)
    console.print(NEXT, markup=False)


def cell(row: Row, name: str) -> str:
    """The value of a row in a column."""
    key, _ = COLUMNS[name]
    value = row.level if key == "level" else row.scores[key]
    if value is None:
        return "-"
    return f"{value:.3f}" if key in ("nll", "level") else percent(value)


def percent(value: float) -> str:
    """A share in per cent."""
    return f"{100 * value:.1f}"


def verdicts(outcome: Outcome) -> list[str]:
    """One line for each row after softmax, and two about out-of-scope texts."""
    shown = "; ".join(
        f"{row.name} {percent(row.scores['outside_entropy'] or 0.0)}"
        for row in outcome.rows
        if row is outcome.rows[0] or row.level is not None
    )
    novelty = outcome.novelty
    return [
        *(f"{name}: {_verdict(found)}" for name, found in outcome.differences.items()),
        f"Out-of-scope texts are detected by entropy with these AUROCs: {shown}",
        f"babn.fit_novelty detects them by their distance from the training texts (AUROC "
        f"{percent(novelty.auroc)}): with p-values up to 5 % it flags {percent(novelty.outside)} % "
        f"of them and {percent(novelty.clear)} % of the clear texts",
    ]


def _verdict(found: dict[str, Difference]) -> str:
    """The measures by verdict."""
    named: dict[str, list[str]] = {"better": [], "worse": [], "no clear difference": []}
    for name, difference in found.items():
        named[difference.verdict].append(name)
    return "; ".join(f"{key} in {', '.join(names)}" for key, names in named.items() if names)


def certainty(example: Example) -> str:
    """The prediction for a sentence, and its uncertainty."""
    found = example.numbers()
    return (
        f"{example.intent.replace('_', ' ')}, {100 * found['probability']:.0f} % (90 % of samples "
        f"between {100 * found['low']:.0f} and {100 * found['high']:.0f} %); another intent in "
        f"{100 * found['disagreement']:.0f} % of {EXAMPLE_SAMPLES} samples; mutual information "
        f"{found['mutual_information']:.3f} nats"
    )
